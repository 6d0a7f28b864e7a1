"""Field reports about chat traffic that no other test tells of: what passes, what is recorded, what is made up for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Fault, Turn
from tests.proxy.serving import USER, calls, events, serving
from tests.proxy.wire import answer, chunk, documents, run, send, stream, text, usage_chunk

CALL = {"id": "a", "type": "function", "function": {"name": "run", "arguments": "{}"}}


async def test_members_that_an_engine_may_not_know_go_as_they_came(tmp_path: Path) -> None:
    """Field cases 80, 81: vLLM, SGLang and the embedded server pass over what they do not know."""
    extra = {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "prompt_cache_key": "k", "user": "u"}
    tool = {"type": "function", "function": {"name": "run", "strict": True, "parameters": {"type": "object"}}}
    async with serving(tmp_path) as s:
        async with s.chat(tools=[tool], **extra) as got:
            assert got.status == 200
        sent = s.engine.served[0].json
    assert {name: sent[name] for name in extra} == extra
    assert sent["tools"] == [tool]


async def test_a_thought_and_no_word_is_an_answer(tmp_path: Path) -> None:
    """Field cases 53, 81: nothing but reasoning is a valid turn, and its tokens train."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn("", reasoning="let me see"))
        async with s.chat(stream=True) as got:
            last = events(await got.text())[-1]
    (row,) = calls(s.data)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert (row.status, row.trainable, json.loads(row.response or "{}")["reasoning"]) == ("ok", True, "let me see")


async def test_an_engines_error_keeps_its_words_and_the_row_names_the_wire(tmp_path: Path) -> None:
    """Field cases 31, 83, 85: no body of an error is lost, and the record says which wire it was."""
    body = '{"error": {"message": "tool parser is off: start with --enable-auto-tool-choice", "code": 400}}'
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=400, body=body)), Turn(fault=Fault(status=500, body="no JSON at all")))
        async with s.chat() as got:
            assert (got.status, await got.text()) == (400, body)
        async with s.chat() as got:
            assert (got.status, await got.text()) == (500, "no JSON at all")
    first, second = calls(s.data)
    assert "--enable-auto-tool-choice" in (first.error or "")
    assert (second.dialect, second.status, second.http_status) == ("chat", "error", 500)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "hi"}]}, id="list (87)"
        ),
        pytest.param({"role": "assistant", "content": None}, id="null (96)"),
        pytest.param({"role": "assistant", "content": None, "tool_calls": [CALL]}, id="call without its result (95)"),
    ],
)
async def test_histories_go_and_are_recorded_as_they_came(tmp_path: Path, message: dict[str, Any]) -> None:
    """Field cases 87, 95, 96: what an engine makes of lists, nulls and broken histories is the engine's to say."""
    history = [USER, message, USER]
    async with serving(tmp_path) as s:
        async with s.chat(history) as got:
            assert got.status == 200
        assert s.engine.served[0].json["messages"] == history
    (row,) = calls(s.data)
    assert json.loads(row.messages) == history


@pytest.mark.parametrize("asked", [True, False], ids=["stream", "whole"])
async def test_both_ways_of_answering(tmp_path: Path, asked: bool) -> None:
    """Field cases 84, 93: a harness may stream or not; an engine that answers whole where a stream was due is
    streamed all the same."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", fault=Fault(json_to_stream=asked)))
        async with s.chat(stream=asked) as got:
            body = await got.text()
    said = "".join(e["choices"][0]["delta"].get("content") or "" for e in events(body) if e["choices"]) if asked else ""
    assert said == ("one two" if asked else "")
    assert asked or json.loads(body)["choices"][0]["message"]["content"] == "one two"
    assert [row.trainable for row in calls(s.data)] == [True]


def test_a_call_without_an_id_gets_one_that_stays() -> None:
    """Field case 94: filled in once, the same in the stream and in the final object."""
    part = {"index": 0, "function": {"name": "run", "arguments": "{"}}
    rest = {"index": 0, "function": {"arguments": "}"}}
    body = stream(
        chunk({"role": "assistant"}), chunk({"tool_calls": [part]}), chunk({"tool_calls": [rest]}, "tool_calls"),
        usage_chunk(),
    )  # fmt: skip
    asked = {"input": "hi", "stream": True, "tools": [{"type": "function", "name": "run", "parameters": {}}]}
    found = documents(text(run(answer("responses", send("responses", asked)), body)))
    ids = {d["item"]["call_id"] for d in found if d["type"].startswith("response.output_item")}
    final = found[-1]["response"]["output"][0]
    assert ids == {final["call_id"]}
    assert 0 < len(final["call_id"]) <= 40
    assert final["arguments"] == "{}"
