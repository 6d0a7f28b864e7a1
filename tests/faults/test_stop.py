"""R17: told to stop with fifty streams open: those that end in time end rightly, the others are marked."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from forge.proxy.calls.call import CALL_HEADER
from forge.storage.dataset import Dataset
from tests.engine import Gate, ScriptedEngine, Turn
from tests.faults.soak import LONG, SOAK
from tests.proxy.process import STOP_S, proxy_process
from tests.proxy.serving import QUICK, USER, serving

pytestmark = pytest.mark.process

STREAMS = 50


@pytest.mark.timeout(LONG)
async def test_a_signal_with_fifty_streams_open(tmp_path: Path) -> None:
    """SIGTERM to a proxy of its own: it takes no more calls, ends with 0, and every stream is a row that says how it
    ended. That half of them outlast the limit of 30 seconds is waited for in a soak alone."""
    gates = [Gate(is_open=False) for _ in range(STREAMS)]
    staying = STREAMS // 2 if SOAK else 0
    async with (
        ScriptedEngine() as engine,
        proxy_process(tmp_path / "data", engine.url) as proxy,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
    ):
        engine.script(*[Turn("one two three", gate=gate) for gate in gates])
        for gate in gates:
            gate.release(2)
        url, body = f"{proxy.base_url}/chat/completions", {"model": "policy", "messages": [USER], "stream": True}
        answers = [await http.post(url, json=body) for _ in range(STREAMS)]
        for answer in answers:
            await answer.content.readany()
        proxy.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            while not await _refused(http, url, body):
                pass
        for gate in gates[staying:]:
            gate.open()
        got = await asyncio.gather(*(_read(answer) for answer in answers))
        assert await asyncio.wait_for(proxy.process.wait(), STOP_S) == 0, proxy.log.read_text()
    whole = {answer.headers[CALL_HEADER] for answer, said in zip(answers, got, strict=True) if b"[DONE]" in said}
    assert len(whole) == STREAMS - staying
    rows = {row.call_id: row for row in Dataset(tmp_path / "data").calls()}
    assert {rows[call_id].status for call_id in whole} == {"ok"}
    cut = {rows[answer.headers[CALL_HEADER]].status for answer in answers} - {"ok"}
    assert cut <= {"aborted", "interrupted", "truncated"}
    assert bool(cut) == bool(staying)


async def _refused(http: aiohttp.ClientSession, url: str, body: object) -> bool:
    async with http.post(url, json=body) as answer:
        return answer.status == 503 and (await answer.json())["error"]["code"] == "draining"


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    got = b""
    try:
        async for piece in answer.content.iter_any():
            got += piece
    except aiohttp.ClientError:
        pass
    return got


async def test_fifty_streams_end_or_are_marked(tmp_path: Path) -> None:
    """New calls are refused with 503 meanwhile."""
    ends, stays = Gate(is_open=False), Gate(is_open=False)
    engine = ScriptedEngine()
    limits = replace(QUICK, drain_s=2.0)
    whole: list[str] = []
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http,
        serving(tmp_path, engine, limits=limits, decoder=True) as s,
    ):
        engine.default = lambda request: Turn(
            "one two three", gate=ends if "ends" in str(request["messages"]) else stays
        )
        url = f"{s.proxy.base_url}/chat/completions"

        async def stream(number: int) -> None:
            kind = "ends" if number % 2 else "stays"
            messages = [{"role": "user", "content": f"{kind} {number}"}]
            async with http.post(url, json={"model": "policy", "messages": messages, "stream": True}) as answer:
                if b"[DONE]" in await _read(answer):
                    whole.append(answer.headers["X-Forge-Call-Id"])

        load = [asyncio.ensure_future(stream(number)) for number in range(STREAMS)]
        await s.opened(STREAMS)
        s.proxy.deps.draining = True
        async with http.post(url, json={"model": "policy", "messages": [{"role": "user", "content": "late"}]}) as late:
            assert (late.status, (await late.json())["error"]["code"]) == (503, "draining")
        ends.open()
    await asyncio.gather(*load)
    rows = {row.call_id: row for row in Dataset(s.data).calls()}
    assert len(rows) == STREAMS
    assert {rows[call_id].status for call_id in whole} == {"ok"}
    assert len(whole) == STREAMS // 2
    assert {row.status for call_id, row in rows.items() if call_id not in whole} <= {
        "aborted",
        "interrupted",
        "truncated",
    }
