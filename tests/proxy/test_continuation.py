"""A generation that its engine gives up for new weights goes on from its ids: one row, one unbroken stream."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forge.storage.records import Call
from tests.engine import CONTINUE, ScriptedEngine, Turn
from tests.proxy.serving import WAIT_S, Serving, calls, events, serving

TURN = Turn("one two three four", tool_calls=[("run", '{"cmd":"ls"}')])
BODIES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"model": "policy", "messages": [{"role": "user", "content": "hello"}]},
    "/responses": {"model": "policy", "input": "hello"},
    "/messages": {"model": "policy", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]},
}
SAID = 'one two three four<tool_call>\n{"name": "run", "arguments": {"cmd":"ls"}}\n</tool_call><|im_end|>'
TOOL = {"type": "object", "properties": {"cmd": {"type": "string"}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "/chat/completions": [{"type": "function", "function": {"name": "run", "parameters": TOOL}}],
    "/responses": [{"type": "function", "name": "run", "parameters": TOOL}],
    "/messages": [{"name": "run", "input_schema": TOOL}],
}


async def say(s: Serving, path: str, *, stream: bool) -> tuple[int, str]:
    body = BODIES[path] | {"tools": TOOLS[path], "stream": stream}
    async with s.http.post(s.proxy.base_url + path, json=body) as answer:
        return answer.status, await answer.text()


async def given_up(s: Serving, path: str, *, stream: bool, after: int, times: int = 1) -> str:
    """The call's text, given up ``times`` times after as many chunks, each time for a new version."""
    s.engine.script(TURN)
    s.engine.gate.shut()
    call = asyncio.ensure_future(say(s, path, stream=stream))
    for version in range(1, times + 1):
        s.engine.gate.release(after)
        async with asyncio.timeout(WAIT_S):
            await s.engine.gate.waiting.wait()
            await s.control.publish(version=version, path=f"/w/{version}", mode="abort")
            while len(s.engine.served) <= version:
                await asyncio.sleep(0.005)
    s.engine.gate.open()
    async with asyncio.timeout(WAIT_S):
        status, text = await call
    assert status == 200
    return text


def checked(s: Serving, row: Call) -> None:
    """Nothing sampled twice, nothing lost, nothing made up."""
    first = s.engine.served[0]
    whole = [token for served in s.engine.served for token in served.output_ids]
    assert row.output_ids.tolist() == whole
    assert (
        s.engine.tokenizer.decode(whole)
        == 'one two three four<tool_call>\n{"name": "run", "arguments": {"cmd":"ls"}}\n</tool_call><|im_end|>'
    )
    assert row.output_log_probs.tolist() == pytest.approx([p for served in s.engine.served for p in served.log_probs])
    assert row.prompt_ids.tolist() == first.prompt_ids
    assert (row.status, row.finish_reason, row.trainable, row.untrainable_reason) == ("ok", "tool_calls", True, None)
    assert row.completion_tokens == len(whole)
    message = json.loads(row.response or "")
    assert (message["content"], message["tool_calls"][0]["function"]["arguments"]) == (
        "one two three four",
        '{"cmd":"ls"}',
    )


def plain(text: str) -> str:
    """Without what each call has of its own: ids and times."""
    values = events(text) if "data: " in text else [json.loads(text)]
    found = json.dumps(values)
    for value in values:
        for name in ("id", "created"):
            if name in value:
                found = found.replace(json.dumps(value[name]), "0")
    return found


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("after", [1, 3, 12])
async def test_a_client_of_chat_gets_what_it_would_have_got(tmp_path: Path, stream: bool, after: int) -> None:
    """Field cases 172, 175: aborted for an update after some tokens."""
    async with serving(tmp_path / "whole", ScriptedEngine(embedded=True)) as s:
        s.engine.script(TURN)
        _, unbroken = await say(s, "/chat/completions", stream=stream)
    async with serving(tmp_path / "given up", ScriptedEngine(embedded=True)) as s:
        text = await given_up(s, "/chat/completions", stream=stream, after=after)
        assert plain(text).replace("chatcmpl-tool-2", "chatcmpl-tool-1") == plain(unbroken)
        (row,) = calls(s.data)
        checked(s, row)
        before = len(s.engine.served[0].output_ids)
        spans = [[0, 0, before]] * bool(before) + [[1, before, len(row.output_ids)]]
        assert json.loads(row.version_spans or "") == spans
        assert (row.policy_version_start, row.policy_version_end, row.version_source) == (0, 1, "replica_state")
        assert s.engine.served[1].path == CONTINUE


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("path", BODIES)
async def test_the_stream_is_unbroken_in_every_dialect_however_often(tmp_path: Path, path: str, stream: bool) -> None:
    async with serving(tmp_path, ScriptedEngine(embedded=True)) as s:
        text = await given_up(s, path, stream=stream, after=4, times=2)
        for word in ("one", "four", "run"):
            assert word in text
        assert "abort" not in text
        (row,) = calls(s.data)
        checked(s, row)
        assert [version for version, _, _ in json.loads(row.version_spans or "")] == [0, 1, 2]


async def test_where_the_rest_cannot_be_had_the_row_is_aborted_as_before(tmp_path: Path) -> None:
    """An engine without such a route; and one whose ids and log probs do not agree."""
    async with serving(tmp_path, ScriptedEngine()) as s:
        s.engine.script(TURN)
        s.engine.gate.shut()
        call = asyncio.ensure_future(say(s, "/chat/completions", stream=True))
        s.engine.gate.release(3)
        async with asyncio.timeout(WAIT_S):
            await s.engine.gate.waiting.wait()
            await s.control.publish(version=1, path="/w/1", mode="abort")
            s.engine.gate.open()
            _, text = await call
        assert "generation_aborted" in text
        (row,) = calls(s.data)
        assert (row.status, row.trainable) == ("aborted", False)
