"""R9: an engine's answer is cut at any byte, in every dialect: one row, and an end that its client understands."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from tests.engine import Fault, Turn
from tests.faults.load import ARGUMENTS
from tests.faults.soak import chance, rounds
from tests.proxy.serving import calls, serving
from tests.proxy.wires import WIRES, failed
from tests.proxy.wires import request as request_of

pytestmark = pytest.mark.process

LENGTH = 4000
"""About the bytes of the engine's stream."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("wire", WIRES)
async def test_an_answer_cut_at_any_byte_is_one_row_and_a_right_end(tmp_path: Path, wire: str) -> None:
    dice = chance(f"cut {wire}")
    count = rounds(25, 1250)
    said: list[bool] = []
    async with serving(tmp_path) as s:
        root = s.proxy.base_url.removesuffix("/v1")
        for number in range(count):
            at, reset = dice.randrange(1, LENGTH), dice.random() < 0.5
            fault = Fault(reset_after=at) if reset else Fault(end_after=at)
            s.engine.script(Turn("some words " * 6, tool_calls=[("run", ARGUMENTS)], fault=fault))
            path, body = request_of(wire, number % 4 != 0, tools=True)
            async with s.http.post(root + path, json=body) as answer:
                try:
                    got = await answer.read()
                    whole = answer.status == 200 and not (number % 4 and failed(wire, got))
                except aiohttp.ClientPayloadError:
                    whole = False
            said.append(whole)
        ends = [close.status for close in await s.closed(count)]
        assert len(s.engine.served) == count, "no token is sampled twice"
    rows = calls(s.data)
    assert len(rows) == count
    assert [row.status for row in rows] == ends
    for row, whole in zip(rows, said, strict=True):
        assert (row.status == "ok") == whole, (row.status, whole)
        assert row.trainable == whole
