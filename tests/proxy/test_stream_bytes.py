"""What engines put on the wire, through the whole proxy: any cut, any line end, long lines, odd chunks, silence."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from forge.proxy.config import Limits
from forge.proxy.dialects import DIALECTS
from forge.proxy.sse import MAX_EVENT_BYTES
from tests.engine import Fault, Gate, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, Serving, calls, events, serving
from tests.proxy.wires import WIRES, failed, request, spoken

WIRE = pytest.mark.parametrize("wire", WIRES)
TEXT = "Größe 漢字 🎉👩‍💻 – done"
ARGUMENTS = {"a": '漢字 "🎉"\n\\ \u2028 é'}
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}


async def ask(s: Serving, wire: str, turn: Turn, *, stream: bool = True, tools: bool = False) -> tuple[int, bytes]:
    s.engine.script(turn)
    path, body = request(wire, stream, tools=tools)
    async with s.http.post(s.proxy.base_url.removesuffix("/v1") + path, json=body) as answer:
        return answer.status, await answer.read()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **members: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return event({"choices": [choice]} | members)


def event(members: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(HEAD | members, ensure_ascii=False).encode() + b"\n\n"


def raw(*pieces: bytes, gate: Gate | None = None) -> Turn:
    return Turn(fault=Fault(raw=pieces), gate=gate)


DONE = b"data: [DONE]\n\n"
WHOLE = (chunk({"role": "assistant", "content": ""}), chunk({"content": TEXT}), chunk({}, "stop"))
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


@WIRE
@pytest.mark.parametrize("size", [1, 4096])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
async def test_however_it_is_cut_it_says_the_same(tmp_path: Path, wire: str, size: int, end: str) -> None:
    """Field cases 40, 41, 42, 43: characters and events cut in two, in texts and in tool arguments."""
    async with serving(tmp_path) as s:
        turn = Turn(TEXT, tool_calls=[("run", json.dumps(ARGUMENTS, ensure_ascii=False))])
        await ask(s, wire, turn, tools=True)
        body = bytes(s.engine.served[0].answer).replace(b"\n", end.encode())
        pieces = [body[at : at + size] for at in range(0, len(body), size)]
        _, got = await ask(s, wire, raw(*pieces), tools=True)
        assert spoken(wire, got.replace(end.encode(), b"\n")) == (TEXT, ARGUMENTS)
    first, second = calls(s.data)
    assert second.status == "ok"
    assert second.trainable
    assert (second.response, list(second.output_ids)) == (first.response, list(first.output_ids))


@WIRE
async def test_every_split_point(tmp_path: Path, wire: str) -> None:
    """Field case 43."""
    body = b"".join(WHOLE) + DONE
    async with serving(tmp_path) as s:
        for at in range(0, len(body), 13):
            _, got = await ask(s, wire, raw(body[:at], body[at:]))
            assert spoken(wire, got) == (TEXT, None), at
    assert {row.status for row in calls(s.data)} == {"ok"}


@WIRE
async def test_a_line_of_eight_megabytes(tmp_path: Path, wire: str) -> None:
    """Field cases 44, 46, 47: a whole trace, or a long prompt's ids, in one chunk."""
    long = "word " * (8 << 20 >> 3)
    ids = list(range(400_000))
    body = b"".join([chunk({"content": long}, prompt_token_ids=ids), chunk({}, "stop"), DONE])
    async with serving(tmp_path) as s:
        status, got = await ask(s, wire, raw(*[body[at : at + 65_536] for at in range(0, len(body), 65_536)]))
        assert status == 200
        assert spoken(wire, got) == (long, None)
        (row,) = calls(s.data)
        assert (row.status, len(row.prompt_ids)) == ("ok", len(ids))


@pytest.mark.parametrize("wire", ["chat", "messages"])
async def test_an_event_beyond_the_cap_is_an_error_and_never_cut(tmp_path: Path, wire: str) -> None:
    """Field case 47."""
    piece = b"x" * (4 << 20)
    async with serving(tmp_path) as s:
        count = MAX_EVENT_BYTES // len(piece) + 1
        _, got = await ask(s, wire, raw(WHOLE[1], b'data: {"choices":"', *[piece] * count))
        assert failed(wire, got)
        assert len(got) < 10_000
    (row,) = calls(s.data)
    assert (row.status, row.trainable) == ("error", False)
    assert "64 MiB" in (row.error or "")


@WIRE
@pytest.mark.parametrize(
    "usage",
    [{"choices": [], "usage": USAGE}, {"choices": None, "usage": USAGE}, {"usage": USAGE}],
    ids=["empty", "null", "absent"],
)
async def test_a_usage_chunk_in_any_form_is_read(tmp_path: Path, wire: str, usage: dict[str, Any]) -> None:
    """Field cases 48, 50."""
    async with serving(tmp_path) as s:
        _, got = await ask(s, wire, raw(*WHOLE, event(usage), DONE))
        assert spoken(wire, got) == (TEXT, None)
        assert not failed(wire, got)
    (row,) = calls(s.data)
    assert (row.status, row.completion_tokens) == ("ok", 2)


async def test_a_usage_chunk_that_was_asked_for_has_choices(tmp_path: Path) -> None:
    """Field case 50."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one"))
        async with s.chat(stream=True, stream_options={"include_usage": True}) as answer:
            last = events(await answer.read())[-1]
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 2


@WIRE
async def test_what_comes_behind_the_end_mark_comes_piece_by_piece(tmp_path: Path, wire: str) -> None:
    """As vLLM sends it: the finish, the usage and the end are three writes."""
    gate = Gate(is_open=False)
    pieces = (*WHOLE, b": comment\n\n", event({"choices": [], "usage": USAGE}), b": comment\n\n", DONE)
    async with serving(tmp_path) as s:
        asking = asyncio.ensure_future(ask(s, wire, raw(*pieces, gate=gate)))
        for _ in pieces:
            await asyncio.wait_for(gate.waiting.wait(), 10)
            gate.release(1)
            for _ in range(20):  # turns of the loop, in which it is sent and read
                await asyncio.sleep(0)
        gate.open()
        _, got = await asking
        assert spoken(wire, got) == (TEXT, None)
        if wire == "chat":
            assert got == b"".join(piece for piece in pieces if b'"usage"' not in piece)
    (row,) = calls(s.data)
    assert (row.status, row.completion_tokens) == ("ok", 2)


@WIRE
async def test_an_empty_finish_reason_ends_nothing(tmp_path: Path, wire: str) -> None:
    """Field case 51: bytes go on unchanged, the record has the one that ends it."""
    pieces = (chunk({"content": "one "}, ""), chunk({"content": "two"}, ""), chunk({}, "stop"))
    async with serving(tmp_path) as s:
        _, got = await ask(s, wire, raw(*pieces, DONE))
        assert spoken(wire, got) == ("one two", None)
        if wire == "chat":
            assert got == b"".join(pieces) + DONE
    (row,) = calls(s.data)
    assert (row.status, row.finish_reason) == ("ok", "stop")


@WIRE
@pytest.mark.parametrize("given", [0, 2], ids=["at once", "midway"])
async def test_an_error_inside_a_200_is_an_error(tmp_path: Path, wire: str, given: int) -> None:
    """Field case 52: an error event of the format, the engine's words, and a row that says error."""
    error = b'data: {"error": {"message": "scripted trouble", "type": "X", "code": 500}}\n\n'
    async with serving(tmp_path) as s:
        _, got = await ask(s, wire, raw(*WHOLE[:given], error, DONE))
        assert failed(wire, got)
        assert b"scripted trouble" in got
        status, body = await ask(s, wire, raw(b'{"error": {"message": "scripted trouble"}}'), stream=False)
        assert status == 502
        assert b"scripted trouble" in body
    rows = calls(s.data)
    assert [(row.status, row.error) for row in rows] == [("error", "scripted trouble")] * 2


@WIRE
async def test_a_turn_of_reasoning_alone_is_whole(tmp_path: Path, wire: str) -> None:
    """Field case 53."""
    async with serving(tmp_path) as s:
        _, got = await ask(s, wire, Turn("", reasoning="hm hm"))
        assert not failed(wire, got)
        if wire == "chat":
            assert events(got)[-1]["choices"][0]["finish_reason"] == "stop"
    (row,) = calls(s.data)
    assert (row.status, row.trainable) == ("ok", True)


async def test_tool_turns_are_well_formed_for_the_sdk(tmp_path: Path) -> None:
    """Field case 54: every event parses, and what the SDK puts together is what was sampled."""
    async with serving(tmp_path) as s, openai.AsyncOpenAI(base_url=s.proxy.base_url, api_key="none") as client:
        text = json.dumps(ARGUMENTS, ensure_ascii=False)
        s.engine.script(Turn(TEXT, tool_calls=[("run", text), ("run", text)]))
        tools: Any = request("chat", True, tools=True)[1]["tools"]
        messages: Any = [{"role": "user", "content": "hello"}]
        async with client.chat.completions.stream(model="policy", messages=messages, tools=tools) as stream:
            message = (await stream.get_final_completion()).choices[0].message
        assert [call.function.arguments for call in message.tool_calls or ()] == [text, text]


@pytest.mark.parametrize(("wire", "says"), [("responses", "completed"), ("messages", "tool_use"), ("gemini", "STOP")])
async def test_a_call_that_was_streamed_is_a_call_whatever_the_end_says(tmp_path: Path, wire: str, says: str) -> None:
    """Field case 55; chat passes the engine's own word."""
    async with serving(tmp_path) as s:
        turn = Turn(tool_calls=[("run", '{"a": "b"}')], finish="stop")
        _, got = await ask(s, wire, turn, tools=True)
        assert spoken(wire, got)[1] == {"a": "b"}
        assert f'"{says}"' in got.decode()


@WIRE
async def test_comments_and_empty_events_of_an_engine_do_no_harm(tmp_path: Path, wire: str) -> None:
    """Field cases 36, 37: chat passes them on as they are."""
    pieces = (b":\n\n", b": ping\n\n", b"\n", WHOLE[1], b":\n", b"\n", b"event: ping\n\n", WHOLE[2], DONE)
    async with serving(tmp_path) as s:
        _, got = await ask(s, wire, raw(*pieces))
        assert spoken(wire, got) == (TEXT, None)
        if wire == "chat":
            assert got == b"".join(pieces)
    assert [row.status for row in calls(s.data)] == ["ok"]


def test_keepalives_come_every_ten_seconds() -> None:
    """Field case 39: some clients give up after twenty."""
    assert Limits().keepalive_s == 10


@WIRE
async def test_a_silent_engine_is_bridged_before_and_within_its_answer(tmp_path: Path, wire: str) -> None:
    """Field cases 32, 36, 38, 39."""
    gate = Gate(is_open=False)
    async with serving(tmp_path, limits=replace(QUICK, keepalive_s=0.02)) as s:
        s.engine.script(raw(*WHOLE, DONE, gate=gate))
        gate.release(1)
        path, body = request(wire, True)
        async with s.http.post(s.proxy.base_url.removesuffix("/v1") + path, json=body) as answer:
            got = b""
            for _ in WHOLE[1:]:  # before the text, and after it
                seen = got.count(DIALECTS[wire].keepalive)
                while got.count(DIALECTS[wire].keepalive) < seen + 2:
                    got += await asyncio.wait_for(answer.content.readany(), 10)
                    assert not answer.content.at_eof(), got
                gate.release(1)
            gate.open()
            got += await answer.content.read()
        assert spoken(wire, got) == (TEXT, None)
        assert not failed(wire, got)
    (row,) = calls(s.data)
    assert (row.status, row.delivered) == ("ok", len(got))


async def test_an_engine_that_talks_of_nothing_is_bridged_too(tmp_path: Path) -> None:
    """Field case 38: chunks that are not for the client come all the time, faster than keepalives."""
    gate = Gate(is_open=False)
    nothing = [chunk({}, token_ids=[1]) for _ in range(4000)]
    async with serving(tmp_path, limits=replace(QUICK, keepalive_s=0.05)) as s:
        s.engine.script(raw(*nothing, *WHOLE, DONE, gate=gate))
        async with s.chat(stream=True) as answer:
            got = b""
            while got.count(b": keepalive") < 3:
                gate.release(1)
                reading = asyncio.ensure_future(answer.content.readany())
                await asyncio.wait([reading], timeout=0.005)
                while not reading.done():
                    gate.release(1)
                    await asyncio.wait([reading], timeout=0.005)
                got += reading.result()
                assert not answer.content.at_eof(), got
            assert len(s.engine.served[0].answer) < sum(map(len, nothing))
            gate.open()
            got += await answer.read()
        assert spoken("chat", got) == (TEXT, None)


async def test_a_large_context_through_a_real_stream(tmp_path: Path) -> None:
    """Field case 47: ids of a long prompt ride on the first chunk, as the engine sends them."""
    async with serving(tmp_path, ScriptedEngine(max_model_len=1 << 22)) as s:
        prompt = "a b " * 100_000
        s.engine.script(Turn(TEXT))
        async with s.chat([{"role": "user", "content": prompt}], stream=True) as answer:
            assert spoken("chat", await answer.read()) == (TEXT, None)
    (row,) = calls(s.data)
    assert row.trainable
    assert len(row.prompt_ids) > 200_000
