"""Streams stream, and nothing that a client can act on reaches it before the journal has what it rests on."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.config import Limits
from forge.storage.frames import Close, Data
from tests.engine import Gate, Turn
from tests.proxy.serving import QUICK, USER, Serving, serving
from tests.proxy.wire import send


async def arriving(answer: Any) -> AsyncIterator[str]:
    """Data of SSE events as they come."""
    buffer = b""
    async for chunk in answer.content.iter_any():
        buffer += chunk
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            for line in event.decode().splitlines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")


def recorded(s: Serving) -> bytes:
    return b"".join(e.blobs for e in s.entries() if isinstance(e.frame, Data))


@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_the_first_token_arrives_before_the_last_is_made(tmp_path: Path, dialect: str) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three", gate=gate))
        path, body = (
            ("/chat/completions", {"messages": [USER]}) if dialect == "chat" else ("/responses", {"input": "hello"})
        )
        gate.release(2)
        async with s.http.post(s.proxy.base_url + path, json={"model": "policy", "stream": True} | body) as answer:
            seen = []
            async for event in arriving(answer):
                seen.append(event)
                if "one" in event and not s.engine.served[0].ended:
                    break
            assert not s.engine.served[0].ended
            assert not s.engine.served[0].output_ids[1:]
            gate.open()
            rest = [event async for event in arriving(answer)]
        assert any("three" in event for event in rest)


async def test_a_finish_reason_is_seen_only_after_the_close_frame(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two", tool_calls=[("run", '{"a": 1}')]))
        async with s.chat(stream=True) as answer:
            async for event in arriving(answer):
                if event == "[DONE]" or json.loads(event)["choices"][0]["finish_reason"]:
                    (close,) = s.frames(Close)
                    assert close.status == "ok"
                    assert recorded(s) == bytes(s.engine.served[0].answer)


async def test_a_responses_item_is_done_only_after_its_bytes_are_recorded(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    turn = Turn("text", tool_calls=[("run", '{"a": 1}')], gate=gate)
    async with serving(tmp_path) as s:
        s.engine.script(turn)
        gate.open()
        body = {"model": "policy", "input": "hello", "stream": True, "tools": [{"type": "function", "name": "run"}]}
        async with s.http.post(s.proxy.base_url + "/responses", json=body) as answer:
            async for event in arriving(answer):
                item = json.loads(event)
                if item["type"] == "response.output_item.done" and item["item"]["type"] == "function_call":
                    assert b'"}"' in recorded(s), "the last byte of its arguments is in the journal"
                if item["type"] == "response.completed":
                    assert [c.status for c in s.frames(Close)] == ["ok"]


async def test_what_was_delivered_is_what_the_row_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for stream in (True, False):
            async with s.chat(stream=stream) as answer:
                got = await answer.read()
            close = (await s.closed())[-1]
            assert (close.delivered, close.delivered_sha256) == (len(got), hashlib.sha256(got).hexdigest())


async def test_keepalives_start_after_the_engines_200_and_change_nothing_else(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path, limits=_with(keepalive_s=0.02)) as s:
        s.engine.script(Turn("one", gate=gate))
        gate.release(1)
        async with s.chat(stream=True) as answer:
            seen = b""
            async for chunk in answer.content.iter_any():
                seen += chunk
                if seen.count(b": keepalive\n\n") >= 2:
                    gate.open()
        assert b'"content":"one"' in seen
        assert seen.endswith(b"data: [DONE]\n\n")


async def test_headers_wait_for_the_engines_status(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=_with(keepalive_s=0.01)) as s:
        s.engine.resumed.clear()
        task = asyncio.ensure_future(s.chat(stream=True).__aenter__())
        await s.opened()
        assert not (await asyncio.wait([task], timeout=0.1))[0]
        s.engine.resumed.set()
        answer = await task
        assert answer.status == 200
        await answer.read()


async def test_engine_bytes_reach_the_journal_in_bounded_pieces(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path, limits=_with(data_frame_bytes=1000)) as s:
        s.engine.script(Turn("word " * 30, gate=gate))
        gate.release(20)
        async with s.chat(stream=True) as answer:
            async with asyncio.timeout(5):
                while len(recorded(s)) < 2000:
                    await answer.content.readany()
            assert not s.frames(Close)
            gate.open()
            await answer.read()


def _with(**limits: Any) -> Limits:
    return replace(QUICK, **limits)


@pytest.mark.parametrize("path", ["chat", "completions"])
@pytest.mark.parametrize(
    ("value", "streams"),
    [("true", True), ("1", True), ("1.0", True), ('"true"', True), ("false", False), ("0", False), ("null", False)],
)
def test_what_an_engine_takes_for_a_stream_is_one(path: str, value: str, streams: bool) -> None:
    """vLLM and SGLang read it as pydantic does: their answer to ``"stream": 1`` is events."""
    asked = b'{"model":"m","messages":[],"prompt":"a","stream":' + value.encode() + b"}"
    outgoing = send(path, asked)
    assert outgoing.stream is streams
    assert ("stream_options" in json.loads(outgoing.body)) is streams
