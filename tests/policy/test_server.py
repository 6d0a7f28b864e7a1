"""The routes: shapes, streams, grammars, tools, refusals. On the tiny model, over real HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from forge.policy.template import Text
from tests.policy.served import Json, Served, serving

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

USER = [{"role": "user", "content": "Wie heißt Du? 你好"}]
WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
EXACT = {"logprobs": True, "return_token_ids": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tiny: Callable[[int], Path]) -> AsyncIterator[Served]:
    async with serving(tiny(0)) as running:
        yield running


async def chat(served: Served, **fields: Any) -> Json:
    status, body = await served.post("/v1/chat/completions", {"messages": USER} | fields)
    assert status == 200, body
    return body


async def stream(served: Served, **fields: Any) -> list[Json]:
    return [event async for event in served.events("/v1/chat/completions", {"messages": USER} | fields)]


async def test_unasked_shape(served: Served) -> None:
    body = await chat(served, max_tokens=3)
    choice = body["choices"][0]
    assert (choice["token_ids"], choice["logprobs"], body["prompt_token_ids"]) == (None, None, None)
    assert "weight_versions" not in choice
    first, *rest = await stream(served, max_tokens=3)
    assert "prompt_token_ids" not in first
    assert all("token_ids" not in e["choices"][0] and e["choices"][0]["logprobs"] is None for e in rest)
    assert all("usage" not in e for e in rest)


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_says_what_the_whole_body_says(served: Served, seed: int) -> None:
    asked = EXACT | {"max_tokens": 60, "seed": seed, "stop": ["a "]}
    whole = await chat(served, **asked)
    first, *events, usage = await stream(served, **asked, stream_options={"include_usage": True})
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    choices = [event["choices"][0] for event in events]
    expected = whole["choices"][0]
    assert all(len(c["token_ids"]) == len(c["logprobs"]["content"]) == 1 for c in choices)
    assert [i for c in choices for i in c["token_ids"]] == expected["token_ids"]
    assert "".join(c["delta"]["content"] for c in choices) == expected["message"]["content"]
    assert choices[-1]["finish_reason"] == expected["finish_reason"]
    assert choices[-1]["weight_versions"] == [{"version": "0", "start": 0, "end": len(expected["token_ids"])}]
    assert [e["logprob"] for c in choices for e in c["logprobs"]["content"]] == pytest.approx(
        [e["logprob"] for e in expected["logprobs"]["content"]], abs=1e-4
    )
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == len(expected["token_ids"])


async def test_text_is_what_the_ids_decode_to(served: Served, smollm2: Path) -> None:
    text = Text(smollm2)
    for seed in range(3):
        choice = (await chat(served, **EXACT, max_tokens=40, seed=seed))["choices"][0]
        assert choice["message"]["content"] == text.tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
        for index, entry in zip(choice["token_ids"], choice["logprobs"]["content"], strict=True):
            assert bytes(entry["bytes"]) == text.bytes_of(index)


async def test_a_stop_string_stays_in_the_ids(served: Served) -> None:
    free = (await chat(served, **EXACT, max_tokens=30, seed=1))["choices"][0]
    letters = [c for c in free["message"]["content"] if c.isalpha()]
    cut = (await chat(served, **EXACT, max_tokens=30, seed=1, stop=letters[5]))["choices"][0]
    assert cut["message"]["content"] == free["message"]["content"].partition(letters[5])[0]
    assert cut["token_ids"] == free["token_ids"][: len(cut["token_ids"])]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", letters[5])


async def test_shaped_distributions_are_the_ones_reported(served: Served) -> None:
    one = (await chat(served, **EXACT, max_tokens=5, top_k=1, top_logprobs=2))["choices"][0]
    assert [e["logprob"] for e in one["logprobs"]["content"]] == [0.0] * 5
    assert one["logprobs"]["content"][0]["top_logprobs"][1]["logprob"] == -9999.0
    greedy = (await chat(served, **EXACT, max_tokens=5, temperature=0, top_logprobs=1))["choices"][0]
    assert greedy["token_ids"] == one["token_ids"]
    assert all(e["logprob"] == e["top_logprobs"][0]["logprob"] < 0 for e in greedy["logprobs"]["content"])
    tight = (await chat(served, **EXACT, max_tokens=5, top_p=1e-6))["choices"][0]
    assert [e["logprob"] for e in tight["logprobs"]["content"]] == [0.0] * 5


async def test_grammars(served: Served) -> None:
    regex = (await chat(served, **EXACT, structured_outputs={"regex": "[ab]{3}-\\d"}))["choices"][0]
    assert regex["message"]["content"][3] == "-"
    assert regex["token_ids"][-1] == 2
    assert regex["finish_reason"] == "stop"
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    for fields in ({"structured_outputs": {"json": schema}}, {"response_format": form}):
        content = (await chat(served, max_tokens=200, **fields))["choices"][0]["message"]["content"]
        assert json.loads(content)["n"] in (1, 2)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_forced_tools(served: Served, choice: Any) -> None:
    asked = EXACT | {"tools": [WEATHER], "tool_choice": choice, "max_tokens": 300, "seed": 4}
    whole = (await chat(served, **asked))["choices"][0]
    call = whole["message"]["tool_calls"][0]
    assert (call["type"], call["function"]["name"], whole["finish_reason"]) == ("function", "get_weather", "tool_calls")
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    assert whole["message"]["content"] is None
    events = [e["choices"][0] for e in (await stream(served, **asked))[1:]]
    assert [i for e in events for i in e["token_ids"]] == whole["token_ids"]
    assert "".join(e["delta"].get("content", "") for e in events) == ""
    deltas = [d for e in events for d in e["delta"].get("tool_calls", [])]
    assert [d["function"] for d in deltas] == [call["function"]]
    assert events[-1]["finish_reason"] == "tool_calls"


async def test_tools_are_rendered_and_turns_append(served: Served) -> None:
    """With canonical text, the next turn's prompt starts with this one's prompt and output, id for id."""
    without = (await served.post("/tokenize", {"messages": USER}))[1]
    status, first = await served.post("/tokenize", {"messages": USER, "tools": [WEATHER]})
    assert status == 200
    assert first["count"] > without["count"] + 50
    said = 'ok\n<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Rome"}}\n</tool_call><|im_end|>'
    output = (await served.post("/tokenize", {"prompt": said}))[1]["tokens"]
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":  "Rome"}'}}
    turns = [
        *USER,
        {"role": "assistant", "content": "ok\n", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "22"},
    ]
    second = (await served.post("/tokenize", {"messages": turns, "tools": [WEATHER]}))[1]
    assert second["tokens"][: first["count"] + len(output)] == first["tokens"] + output
    text = (await served.post("/detokenize", {"tokens": second["tokens"]}))[1]["prompt"]
    assert text.endswith("<tool_response>\n22\n</tool_response><|im_end|>\n<|im_start|>assistant\n")


async def test_completions(served: Served) -> None:
    choice = await served.ask("Hello", max_tokens=4, logprobs=2, ignore_eos=True)
    assert choice["prompt_token_ids"] == (await served.post("/tokenize", {"prompt": "Hello"}))[1]["tokens"]
    assert [len(d) for d in choice["logprobs"]["top_logprobs"]] in ([2] * 4, [3] * 4, *_mixed())
    events = [e["choices"][0] async for e in served.events("/v1/completions", {"prompt": [1, 2], "max_tokens": 2})]
    assert [e["finish_reason"] for e in events] == [None, "length"]


def _mixed() -> list[list[int]]:
    return [[2 + (n >> b & 1) for b in range(4)] for n in range(16)]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/v1/chat/completions", {"messages": USER, "n": 2}, 400, "n=2"),
        ("/v1/chat/completions", {"messages": USER, "model": "gpt"}, 404, "`gpt` does not exist"),
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 5000}, 400, "max_model_len=2048"),
        ("/v1/chat/completions", {"messages": USER, "structured_outputs": {"regex": "("}}, 400, "grammar"),
        ("/v1/chat/completions", {"messages": USER, "structured_outputs": {"json": "{"}}, 400, "JSON schema"),
        ("/v1/completions", {"prompt": [5] * 2048}, 400, "maximum context length is 2048 tokens"),
        ("/v1/completions", {"prompt": [49152]}, 400, "out of vocabulary"),
        ("/v1/completions", {"prompt": []}, 400, "empty"),
        ("/v1/completions", {"prompt": ["a", "b"]}, 400, "one prompt"),
        ("/tokenize", {}, 400, "prompt or messages"),
        ("/nothing", {}, 404, "POST /nothing"),
        ("/pause?mode=softly", None, 400, "softly"),
        ("/reload_weights", {"path": "/nowhere"}, 409, "not paused"),
        ("/update_weight_version", {"new_version": 3}, 400, "new_version"),
    ],
)
async def test_refusals(served: Served, path: str, body: Json, status: int, says: str) -> None:
    got, answer = await served.post(path, body)
    assert got == status
    assert says in answer["error"]["message"]
    assert answer["error"]["code"] == status


async def test_the_last_token_of_the_context_can_be_drawn(served: Served) -> None:
    choice = await served.ask([5] * 2046, max_tokens=50, ignore_eos=True)
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (2, "length")


async def test_models_and_weights(served: Served, tiny: Callable[[int], Path]) -> None:
    model = (await served.get("/v1/models"))["data"][0]
    assert (model["id"], model["max_model_len"]) == ("policy", 2048)
    info = await served.get("/weight_info")
    assert (info["weight_version"], len(info["weight_digest"])) == ("0", 64)


async def test_the_key_opens_every_route_but_health(tiny: Callable[[int], Path]) -> None:
    async with serving(tiny(0), key="secret") as served:
        assert await served.get("/health") == {}
        for path in ("/v1/models", "/weight_info", "/nothing"):
            assert (await served.get(path))["error"]["code"] == 401
        assert (await served.post("/pause"))[0] == 401
        served.http.headers["Authorization"] = "Bearer secret"
        assert "data" in await served.get("/v1/models")


async def test_a_web_page_pauses_no_server(served: Served) -> None:
    """Without a key every program of this machine may ask, but no page of another origin or of a bent name."""
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example:8200"}, {"Origin": "null"}):
        for path in ("/pause", "/v1/chat/completions"):
            async with served.http.post(served.base + path, data=b"{}", headers=headers) as answer:
                assert answer.status == 403
    async with served.http.get(f"{served.base}/health", headers={"Host": "localhost:1"}) as answer:
        assert answer.status == 200
