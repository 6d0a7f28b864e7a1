"""R8: clients of every dialect that leave at random moments: the engine stops, and the row says how far it came."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.engine import Gate, Turn
from tests.faults.load import ARGUMENTS
from tests.faults.soak import chance, rounds
from tests.proxy.serving import WAIT_S, calls, serving
from tests.proxy.wires import WIRES
from tests.proxy.wires import request as request_of

pytestmark = pytest.mark.process

CHUNKS = 60
"""About as many as the answer has."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wire", WIRES)
async def test_who_leaves_at_any_moment_is_a_row_and_frees_the_engine(tmp_path: Path, wire: str) -> None:
    dice = chance(f"leave {wire}")
    async with serving(tmp_path) as s:
        url = s.proxy.base_url.removesuffix("/v1")
        for _ in range(rounds(2, 300)):
            gate = Gate(is_open=False)
            s.engine.script(Turn("some words " * 6, tool_calls=[("run", ARGUMENTS)], gate=gate))
            path, body = request_of(wire, dice.random() < 0.7, tools=True)
            async with aiohttp.ClientSession() as http:
                asking = asyncio.ensure_future(_read(http, url + path, body))
                gate.release(dice.randrange(CHUNKS))
                for _ in range(dice.randrange(600)):  # turns of the loop, in which the answer comes so far
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
            async with asyncio.timeout(WAIT_S):
                while s.proxy.deps.pool.all()[0].in_flight or len(await s.opened(0)) != len(await s.closed(0)):
                    await asyncio.sleep(0.005)
                for served in s.engine.served:
                    await served.done.wait()
            s.engine.turns.clear()  # of a call that did not come so far
        told = [served for served in s.engine.served if served.ended]
    rows = calls(s.data)
    assert len(rows) >= len(s.engine.served) > 0
    assert {row.status for row in rows} <= {"aborted", "ok"}
    assert sum(row.status == "ok" for row in rows) <= len(told), "what the engine did not end is not whole"
    assert all(row.trainable == (row.status == "ok") for row in rows)
    print(f"{len(rows)} calls, {len(told)} answers told to their end")


async def _read(http: aiohttp.ClientSession, url: str, body: object) -> None:
    async with http.post(url, json=body) as answer:
        await answer.read()
