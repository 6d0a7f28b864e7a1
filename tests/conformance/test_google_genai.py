"""Google's own Python SDK through the proxy: streams, tools, chats, images, counts, models, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from google import genai
from google.genai import errors, types

from forge.storage.records import Call
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, Serving, calls, events, serving

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")
MODEL = "stub-model"
PIXEL = b"\x89PNG\r\n\x1a\n\xfb\xff\xfe"
"""Its base64 differs between the two alphabets."""


@asynccontextmanager
async def sdk(s: Serving) -> AsyncIterator[genai.Client]:
    ticket = await s.control.open_session()
    base = ticket.base_url.removesuffix("/v1")
    client = genai.Client(api_key=ticket.api_key, http_options=types.HttpOptions(base_url=base))
    try:
        yield client
    finally:
        await client.aio.aclose()
        client.close()


def get_weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"sunny in {city}"


def extends(earlier: Call, later: Call) -> bool:
    """The later prompt begins with all that the engine saw and said before."""
    whole = [*earlier.prompt_ids, *earlier.output_ids]
    return len(whole) > 0 and list(later.prompt_ids[: len(whole)]) == whole


async def test_whole_and_stream_say_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(*[Turn("Hello\u2028there", reasoning="I think", tool_calls=[("run", '{"a": [1, 2.50]}')])] * 2)
        config = types.GenerateContentConfig(thinking_config=types.ThinkingConfig(include_thoughts=True))
        whole = await client.aio.models.generate_content(model=MODEL, contents="hi", config=config)
        chunks = [
            chunk
            async for chunk in await client.aio.models.generate_content_stream(
                model=MODEL, contents="hi", config=config
            )
        ]
        parts = [part for chunk in chunks for part in parts_of(chunk)]
        assert "".join(part.text or "" for part in parts if not part.thought) == "Hello\u2028there"
        assert "".join(part.text or "" for part in parts if part.thought) == "I think"
        assert [part.text for part in parts_of(whole)] == ["I think", "Hello\u2028there", None]
        for found in (parts, parts_of(whole)):
            (call,) = [part.function_call for part in found if part.function_call]
            assert (call.name, call.args) == ("run", {"a": [1, 2.5]})
            assert len([part for part in found if part.thought_signature]) == 1
        served = s.engine.served[1]
        for answer in (whole, chunks[-1]):
            usage = answer.usage_metadata
            assert usage is not None
            assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (
                len(served.prompt_ids),
                len(served.output_ids),
                len(served.prompt_ids) + len(served.output_ids),
            )
            assert candidate(answer).finish_reason is types.FinishReason.STOP
            assert answer.model_version == MODEL
        assert len({chunk.response_id for chunk in chunks}) == 1
    rows = calls(s.data)
    assert [(row.dialect, row.trainable, row.model_requested) for row in rows] == [("gemini", True, MODEL)] * 2


def candidate(answer: types.GenerateContentResponse) -> types.Candidate:
    assert answer.candidates is not None
    (only,) = answer.candidates
    return only


def parts_of(answer: types.GenerateContentResponse) -> list[types.Part]:
    content = candidate(answer).content
    assert content is not None
    return list(content.parts or ())


@pytest.mark.parametrize("streamed", [False, True])
async def test_functions_are_called_by_the_sdk_itself(tmp_path: Path, streamed: bool) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        calling = [("get_weather", '{"city": "Bern"}'), ("get_weather", '{"city": "Basel"}')]
        s.engine.script(Turn(reasoning="two cities", tool_calls=calling), Turn("Sunny in both."))
        config = types.GenerateContentConfig(tools=[get_weather])
        if streamed:
            stream = await client.aio.models.generate_content_stream(model=MODEL, contents="weather?", config=config)
            assert "".join([chunk.text or "" async for chunk in stream]) == "Sunny in both."
        else:
            answer = await client.aio.models.generate_content(model=MODEL, contents="weather?", config=config)
            assert answer.text == "Sunny in both."
        first, second = s.engine.served
        (tool,) = first.json["tools"]
        assert tool["function"]["name"] == "get_weather"
        assert tool["function"]["parameters"]["properties"]["city"]["type"] == "string"
        asked, *results = second.json["messages"][-3:]
        assert asked["reasoning_content"] == "two cities"
        assert [call["id"] for call in asked["tool_calls"]] == [result["tool_call_id"] for result in results]
        assert [json.loads(result["content"]) for result in results] == [
            {"result": "sunny in Bern"},
            {"result": "sunny in Basel"},
        ]
    assert extends(*calls(s.data))


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_second_turn_of_a_chat_extends_the_first(tmp_path: Path, streamed: bool) -> None:
    """The SDK keeps every chunk of a stream as a content of its own."""
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(
            Turn("Hello there, you.", reasoning="be kind"), Turn("Fine.", reasoning="still kind"), Turn("Bye")
        )
        instruction = "You are\nkind."
        chat = client.aio.chats.create(
            model=MODEL,
            config=types.GenerateContentConfig(
                system_instruction=instruction, thinking_config=types.ThinkingConfig(include_thoughts=True)
            ),
        )
        for said in ("hi", "how are you?", "bye"):
            if streamed:
                async for _ in await chat.send_message_stream(said):
                    pass
            else:
                await chat.send_message(said)
        last = s.engine.served[-1].json["messages"]
        assert [message["role"] for message in last] == ["system", *["user", "assistant"] * 2, "user"]
        assert last[0]["content"] == instruction
        assert (last[2]["content"], last[2]["reasoning_content"]) == ("Hello there, you.", "be kind")
    first, second, third = calls(s.data)
    assert extends(first, second)
    assert extends(second, third)


async def test_thoughts_come_back_though_they_were_not_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("One.", reasoning="hidden 漢字"), Turn("Two."))
        chat = client.aio.chats.create(model=MODEL)
        answer = await chat.send_message("hi")
        assert not any(part.thought for part in parts_of(answer))
        await chat.send_message("more")
        assert s.engine.served[1].json["messages"][1]["reasoning_content"] == "hidden 漢字"
    assert extends(*calls(s.data))


async def test_the_synchronous_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Hello there"), Turn("Hello again"))

        def talk() -> list[str]:
            chat = client.chats.create(model=MODEL)
            said = [chat.send_message("hi").text or ""]
            said.append("".join(chunk.text or "" for chunk in chat.send_message_stream("more")))
            return said

        assert await asyncio.to_thread(talk) == ["Hello there", "Hello again"]
    assert extends(*calls(s.data))


async def test_images_and_the_shape_of_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn('{"name": "cat"}'))
        schema = types.Schema(
            type=types.Type.OBJECT,
            properties={"name": types.Schema(type=types.Type.STRING, nullable=True, max_length=5)},
            required=["name"],
        )
        answer = await client.aio.models.generate_content(
            model=MODEL,
            contents=[
                types.Part.from_bytes(data=PIXEL, mime_type="image/png"),
                types.Part.from_uri(file_uri="https://example.com/cat.jpg", mime_type="image/jpeg"),
                "what is it?",
            ],
            config=types.GenerateContentConfig(
                response_mime_type="application/json",
                response_schema=schema,
                temperature=0.5,
                top_k=40,
                max_output_tokens=100,
                stop_sequences=["END"],
                seed=7,
            ),
        )
        assert answer.parsed == {"name": "cat"}
        sent = s.engine.served[0].json
        image, url, text = sent["messages"][0]["content"]
        assert image["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgr7//4="
        assert url["image_url"]["url"] == "https://example.com/cat.jpg"
        assert text["text"] == "what is it?"
        form = sent["response_format"]
        assert form["type"] == "json_schema"
        assert form["json_schema"]["schema"]["properties"] == {"name": {"type": ["string", "null"], "maxLength": 5}}
        assert (sent["temperature"], sent["top_k"], sent["max_tokens"], sent["stop"], sent["seed"]) == (
            0.5,
            40,
            100,
            ["END"],
            7,
        )


async def test_a_choice_of_functions(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        declared = [types.FunctionDeclaration(name=name, parameters_json_schema={"type": "object"}) for name in "abc"]
        for mode, allowed in [("ANY", ["b"]), ("ANY", ["b", "c"]), ("NONE", None)]:
            calling = types.FunctionCallingConfig(mode=mode, allowed_function_names=allowed)
            config = types.GenerateContentConfig(
                tools=[types.Tool(function_declarations=declared), types.Tool(google_search=types.GoogleSearch())],
                tool_config=types.ToolConfig(function_calling_config=calling),
            )
            await client.aio.models.generate_content(model=MODEL, contents="hi", config=config)
        sent = [
            (served.json["tool_choice"], [tool["function"]["name"] for tool in served.json["tools"]])
            for served in s.engine.served
        ]
        assert sent == [
            ({"type": "function", "function": {"name": "b"}}, ["b"]),
            ("required", ["b", "c"]),
            ("none", ["a", "b", "c"]),
        ]
    assert all({"edit": "dropped_tool", "type": "googleSearch"} in json.loads(row.edits or "") for row in calls(s.data))


async def test_a_call_that_is_no_json_is_said_so(tmp_path: Path) -> None:
    """Field cases 97, 99: never repaired."""
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Well", tool_calls=[("run", '{"a": '), ("run", '{"a": 1}')]))
        answer = await client.aio.models.generate_content(model=MODEL, contents="hi")
        assert candidate(answer).finish_reason is types.FinishReason.MALFORMED_FUNCTION_CALL
        assert [call.args for call in answer.function_calls or ()] == [{"a": 1}]
    (row,) = calls(s.data)
    assert json.loads(row.response or "")["tool_calls"][0]["function"]["arguments"] == '{"a": '
    assert row.finish_reason == "tool_calls"


async def test_the_limit_of_tokens(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("one two three four"))
        config = types.GenerateContentConfig(max_output_tokens=2)
        answer = await client.aio.models.generate_content(model=MODEL, contents="hi", config=config)
        assert candidate(answer).finish_reason is types.FinishReason.MAX_TOKENS
        assert answer.text == "one two"


async def test_tokens_are_counted_by_the_policy_server(tmp_path: Path) -> None:
    """Field case 100: a number, and no row."""
    async with serving(tmp_path) as s, sdk(s) as client:
        counted = await client.aio.models.count_tokens(model=MODEL, contents="one two three")
        await client.aio.models.generate_content(model=MODEL, contents="one two three")
        assert counted.total_tokens == len(s.engine.served[0].prompt_ids)
        body = {"generateContentRequest": {"model": "models/x", "contents": [{"parts": [{"text": "one two three"}]}]}}
        async with s.http.post(f"{s.proxy.base_url}beta/models/x:countTokens", json=body) as answer:
            assert await answer.json() == {"totalTokens": counted.total_tokens}
    assert len(calls(s.data)) == 1


async def test_models_are_listed_and_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        listed = [model async for model in await client.aio.models.list()]
        found = await client.aio.models.get(model="policy")
        assert [model.name for model in listed] == [found.name] == ["models/policy"]
        assert found.input_token_limit == s.engine.max_model_len
        assert "generateContent" in (found.supported_actions or ())
    assert calls_of_data(s) == []


def calls_of_data(s: Serving) -> list[Call]:
    return calls(s.data) if s.entries() else []


async def test_errors_are_the_sdks_own(tmp_path: Path) -> None:
    """Field case 113: the wording that makes harnesses compact."""
    async with serving(tmp_path, ScriptedEngine(max_model_len=40)) as s, sdk(s) as client:
        models = client.aio.models
        s.engine.script(Turn(fault=Fault(status=400)), Turn(fault=Fault(status=500)))
        with pytest.raises(errors.ClientError, match="scripted 400") as refused:
            await models.generate_content(model=MODEL, contents="hi")
        assert (refused.value.code, refused.value.status) == (400, "INVALID_ARGUMENT")
        with pytest.raises(errors.ServerError, match="scripted 500") as failed:
            await _hear(await models.generate_content_stream(model=MODEL, contents="hi"), [])
        assert (failed.value.code, failed.value.status) == (500, "INTERNAL")
        too_long = r"The input token count \(\d+\) exceeds the maximum number of tokens allowed \(40\)\. This model's"
        with pytest.raises(errors.ClientError, match=too_long):
            await models.generate_content(model=MODEL, contents="one " * 50)
        config = types.GenerateContentConfig(cached_content="cachedContents/1")
        with pytest.raises(errors.ClientError, match="cachedContent"):
            await models.generate_content(model=MODEL, contents="hi", config=config)
        with pytest.raises(errors.ClientError, match="Multiple candidates"):
            await models.generate_content(
                model=MODEL, contents="hi", config=types.GenerateContentConfig(candidate_count=2)
            )


async def test_an_error_inside_a_stream_ends_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("one two", fault=Fault(no_finish=True)))
        heard: list[str] = []
        with pytest.raises(errors.ServerError, match="broke off") as failed:
            await _hear(await client.aio.models.generate_content_stream(model=MODEL, contents="hi"), heard)
        assert ("".join(heard), failed.value.code, failed.value.status) == ("one two", 500, "INTERNAL")


async def test_a_bad_key_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        options = types.HttpOptions(base_url=s.proxy.base_url.removesuffix("/v1"))
        client = genai.Client(api_key="fs_wrong", http_options=options)
        with pytest.raises(errors.ClientError, match="no key of this proxy") as refused:
            await client.aio.models.generate_content(model=MODEL, contents="hi")
        assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")
        await client.aio.aclose()
        client.close()


@pytest.mark.parametrize("query", ["alt=sse&key=", "key="], ids=["events", "array"])
async def test_a_key_in_the_query_and_a_used_up_budget(tmp_path: Path, query: str) -> None:
    """As curl and older clients of Google's ask: the key opens the session and is kept nowhere."""
    async with serving(tmp_path, implicit=False) as s:
        ticket = await s.control.open_session(budgets={"calls": 1})
        s.engine.script(Turn("Hello there"))
        url = f"{s.proxy.base_url}beta/models/{MODEL}:streamGenerateContent?{query}{ticket.api_key}"
        said = []
        for _ in range(2):
            async with s.http.post(url, json={"contents": "hi"}) as answer:
                assert answer.status == 200
                body = await answer.text()
                chunks = events(body) if "sse" in query else json.loads(body)
            answers = [types.GenerateContentResponse.model_validate(chunk) for chunk in chunks]
            assert candidate(answers[-1]).finish_reason is types.FinishReason.STOP
            said.append("".join(part.text or "" for chunk in answers for part in parts_of(chunk)))
        assert said[0] == "Hello there"
        assert "budget of calls" in said[1]
        assert len(s.engine.served) == 1
        written = b"".join(path.read_bytes() for path in s.data.rglob("*") if path.is_file())
        assert ticket.api_key.encode() not in written
    (row,) = calls(s.data)
    assert (row.dialect, row.session_id, row.trainable) == ("gemini", ticket.session_id, True)


async def test_keepalives_say_nothing(tmp_path: Path) -> None:
    """Its readers break at comments, so they are blank lines."""
    async with serving(tmp_path, limits=replace(QUICK, keepalive_s=0.01)) as s, sdk(s) as client:
        s.engine.gate.shut()
        stream = await client.aio.models.generate_content_stream(model=MODEL, contents="hi")
        heard: list[str] = []
        async with asyncio.TaskGroup() as group:
            group.create_task(_hear(stream, heard))
            # A call that began later has had keepalives: so has the first.
            path = f"{s.proxy.base_url}beta/models/{MODEL}:streamGenerateContent?alt=sse"
            async with s.http.post(path, json={"contents": "hi"}) as other:
                assert await other.content.readexactly(6) == b"\n" * 6
                s.engine.gate.open()
                await other.read()
        assert "".join(heard) == "ok"


async def _hear(stream: AsyncIterator[types.GenerateContentResponse], heard: list[str]) -> None:
    async for chunk in stream:
        heard.append(chunk.text or "")
