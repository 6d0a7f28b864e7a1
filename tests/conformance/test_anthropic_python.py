"""The official Anthropic SDK for Python against the messages wire: written by nobody here, it says what is right."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message, MessageParam, ToolParam
from pydantic import BaseModel

from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import Serving, calls, serving

RUN: ToolParam = {
    "name": "run",
    "description": "Runs a command",
    "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}},
}
HI: list[MessageParam] = [{"role": "user", "content": "hi"}]
ASK: dict[str, Any] = {"model": "policy", "max_tokens": 1000}
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@asynccontextmanager
async def sdk(s: Serving, *, retries: int = 0, key: str | None = None) -> AsyncIterator[AsyncAnthropic]:
    ticket = await s.control.open_session()
    base = ticket.base_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=base, api_key=key or ticket.api_key, max_retries=retries) as client:
        yield client


async def say(client: AsyncAnthropic, messages: list[MessageParam], **members: Any) -> Message:
    async with client.messages.stream(messages=messages, **ASK, **members) as stream:
        return await stream.get_final_message()


def back(message: Message) -> MessageParam:
    """An answer as it goes back into the history."""
    return {"role": "assistant", "content": message.content}


async def test_a_stream_and_a_whole_answer_are_the_same_message(tmp_path: Path) -> None:
    """Field case 108: order and shape of the events are those the SDK takes apart."""
    async with serving(tmp_path) as s, sdk(s) as client:
        turn = Turn("Hello 漢字 🎉", tool_calls=[("run", '{"cmd": "ls"}')], reasoning="I think")
        s.engine.script(turn, turn)
        kinds: list[str] = []
        async with client.messages.stream(messages=HI, tools=[RUN], **ASK) as stream:
            async for event in stream:
                kinds.append(event.type)
            streamed = await stream.get_final_message()
        whole = await client.messages.create(messages=HI, tools=[RUN], **ASK)
        assert kinds[0] == "message_start"
        assert kinds[-2:] == ["message_delta", "message_stop"]
        assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
        for message in (streamed, whole):
            thinking, text, tool = message.content
            assert thinking.type == "thinking"
            assert thinking.thinking == "I think"
            assert text.type == "text"
            assert text.text == "Hello 漢字 🎉"
            assert tool.type == "tool_use"
            assert (tool.name, tool.input) == ("run", {"cmd": "ls"})
            assert (message.stop_reason, message.model) == ("tool_use", "policy")
            assert message.usage.input_tokens == len(s.engine.served[0].prompt_ids)
            assert message.usage.output_tokens == len(s.engine.served[0].output_ids)
    first, second = calls(s.data)
    assert first.trainable
    assert second.trainable
    assert (first.dialect, first.finish_reason) == ("messages", "tool_calls")


async def test_a_history_of_two_turns_extends_the_first_prompt(tmp_path: Path) -> None:
    """Field cases 109 and 111: thinking and its signature come back, and the next prompt extends the last one."""
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(
            Turn("On it", tool_calls=[("run", '{"cmd": "ls"}'), ("run", '{"cmd": "pwd"}')], reasoning="Two things"),
            Turn("Done"),
        )
        first = await say(client, HI, tools=[RUN], system="Be brief")
        tools = [block for block in first.content if block.type == "tool_use"]
        results: Any = [
            {"type": "tool_result", "tool_use_id": tool.id, "content": f"result of {tool.input['cmd']}"}
            for tool in reversed(tools)
        ]
        messages: list[MessageParam] = [*HI, back(first), {"role": "user", "content": results}]
        second = await say(client, messages, tools=[RUN], system="Be brief")
        assert [block.text for block in second.content if block.type == "text"] == ["Done"]
        one, two = s.engine.served
        before = one.prompt_ids + one.output_ids
        assert two.prompt_ids[: len(before)] == before
        sent = two.json["messages"]
        assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "tool"]
        assert [m["content"] for m in sent[-2:]] == ["result of ls", "result of pwd"]


async def test_stop_sequences_and_limits(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("one two three four"), Turn("one", finish="content_filter"))
        cut = await client.messages.create(
            model="policy", max_tokens=2, messages=HI, stop_sequences=["STOP"], extra_body={"temperature": 0.5}
        )
        assert cut.stop_reason == "max_tokens"
        assert (s.engine.served[0].json["stop"], s.engine.served[0].json["temperature"]) == (["STOP"], 0.5)
        refused = await client.messages.create(messages=HI, **ASK)
        assert refused.stop_reason == "refusal"


async def test_images(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
        await say(client, [{"role": "user", "content": [{"type": "text", "text": "what?"}, image]}])
        (message,) = s.engine.served[0].json["messages"]
        assert message["content"] == [
            {"type": "text", "text": "what?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ]


@pytest.mark.parametrize(
    ("status", "kind", "name"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.OverloadedError, "overloaded_error"),
    ],
)
async def test_errors_are_the_sdks_own(
    tmp_path: Path, status: int, kind: type[anthropic.APIStatusError], name: str
) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.default = lambda request: Turn(fault=Fault(status=status))
        with pytest.raises(kind, match=f"scripted {status}") as caught:
            await client.messages.create(messages=HI, **ASK)
        assert caught.value.type == name


async def test_a_wrong_key_and_a_broken_stream_are_errors(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("some words", fault=Fault(no_finish=True)))
        with pytest.raises(anthropic.APIStatusError, match="broke off"):
            await say(client, HI)
        with pytest.raises(anthropic.AuthenticationError):
            await client.with_options(api_key="fs_wrong").messages.create(messages=HI, **ASK)


async def test_too_long_a_prompt_is_told_in_the_words_that_harnesses_know(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(max_model_len=20)) as s, sdk(s) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 20 maximum"):
            await say(client, [{"role": "user", "content": "word " * 40}])


async def test_tokens_are_counted_and_no_row_is_made(tmp_path: Path) -> None:
    """Field cases 100 and 101: a count is the policy's own, is no call, and no beta header hinders it."""
    async with serving(tmp_path) as s, sdk(s) as client:
        counted = await client.messages.count_tokens(
            model="policy",
            messages=HI,
            tools=[RUN],
            system="Be brief",
            extra_headers={"anthropic-beta": "no-such-beta"},
        )
        await say(client, HI, tools=[RUN], system="Be brief")
        assert counted.input_tokens == len(s.engine.served[0].prompt_ids)
    assert len(calls(s.data)) == 1


async def test_unknown_betas_and_members_are_taken(tmp_path: Path) -> None:
    """Field cases 102 and 103: no beta is refused, and none reaches the engine."""
    async with serving(tmp_path) as s, sdk(s) as client:
        await client.beta.messages.create(
            messages=[{"role": "user", "content": "hi"}],
            betas=["made-up-2031-01-01"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            extra_body={"never_heard_of": {"a": 1}},
            **ASK,
        )
        (served,) = s.engine.served
        assert not any(name.lower().startswith("anthropic") for name in served.headers)
        assert "never_heard_of" not in json.dumps(served.json)


class Answer(BaseModel):
    count: int
    names: list[str]


async def test_structured_output(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn('{"count": 1, "names": ["漢"]}'))
        answer = await client.messages.parse(messages=HI, output_format=Answer, **ASK)
        assert answer.parsed_output == Answer(count=1, names=["漢"])
        form = s.engine.served[0].json["response_format"]
        assert form["type"] == "json_schema"
        assert form["json_schema"]["schema"]["properties"].keys() == {"count", "names"}


async def test_models_are_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        models = [model.id async for model in client.models.list()]
        assert models == ["policy"]
        assert (await client.models.retrieve("policy")).id == "policy"
