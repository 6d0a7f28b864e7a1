"""R17: told to stop with fifty streams open: those that end in time end rightly, the others are marked."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from forge.storage.dataset import Dataset
from tests.engine import Gate, ScriptedEngine, Turn
from tests.proxy.serving import QUICK, serving

pytestmark = pytest.mark.process

STREAMS = 50


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
                got = b""
                try:
                    async for piece in answer.content.iter_any():
                        got += piece
                except aiohttp.ClientError:
                    return
                if b"[DONE]" in got:
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
