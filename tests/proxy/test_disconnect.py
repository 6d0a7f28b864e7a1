"""A client that leaves: the engine stops within a second, and the row says aborted with what had come."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from forge.storage.frames import Close, Data
from tests.engine import Fault, Gate, Turn
from tests.proxy.serving import WAIT_S, Serving, calls, serving
from tests.proxy.wires import WIRES
from tests.proxy.wires import request as request_of

STOP_S = 5.0
"""The promise is one second; a busy machine may take longer."""


async def leave(s: Serving, stream: bool, events: int, wire: str = "chat") -> None:
    """A client of its own that goes away after so many events (0: before the headers)."""
    path, body = request_of(wire, stream)
    async with aiohttp.ClientSession() as http:
        request = http.post(s.proxy.base_url.removesuffix("/v1") + path, json=body)
        if events == 0:
            before = len(s.engine.served)
            task = asyncio.ensure_future(request.__aenter__())
            async with asyncio.timeout(WAIT_S):
                while len(s.engine.served) == before:
                    await asyncio.sleep(0.005)
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result().close()  # its headers were faster
            return
        async with request as answer:
            got = b""
            while got.count(b"\n\n") < events:
                got += await answer.content.readany()
            answer.close()


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("stream", "moment", "sent"),
    [
        (False, 0, 0),
        (False, 0, 2),
        (True, 0, 0),
        (True, 1, 1),
        (True, 3, 3),
        (True, 5, 5),
    ],
    ids=["whole early", "whole late", "before headers", "at the first event", "mid stream", "before the finish"],
)
async def test_the_engine_side_closes_and_the_row_is_aborted(
    tmp_path: Path, wire: str, stream: bool, moment: int, sent: int
) -> None:
    """Field cases 121, 122, 124: it sees its connection end with no further chunk to notice it by."""
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one two three four", gate=gate))
        sent += wire == "gemini" and moment == 1  # its first event is a text
        gate.release(sent)
        await leave(s, stream, moment if wire == "chat" else min(moment, 1), wire)
        (served,) = s.engine.served
        async with asyncio.timeout(STOP_S):
            await served.client_left.wait()
        assert not served.ended
        assert len(served.output_ids) <= sent, "nothing was made for nobody"
        (close,) = await s.closed()
        assert close.status == "aborted"
        if stream and sent:
            assert s.frames(Data), "what came is kept"
    (row,) = calls(s.data)
    assert (row.status, row.trainable) == ("aborted", False)


async def test_a_client_that_leaves_while_the_engine_is_mute(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(mute=True)))
        await leave(s, True, 0)
        async with asyncio.timeout(STOP_S):
            await s.engine.served[0].client_left.wait()
        assert [c.status for c in await s.closed()] == ["aborted"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_while_it_is_waited_for_a_busy_engine(tmp_path: Path, stream: bool) -> None:
    """Field case 121: what nobody waits for is not asked again."""
    async with serving(tmp_path) as s:
        s.engine.script(Turn(fault=Fault(status=429, retry_after="4")))
        await leave(s, stream, 0)
        (close,) = await s.closed()
        assert (close.status, close.error) == ("aborted", "the client left before the end")
        assert len(s.engine.served) == 1
        assert s.proxy.deps.pool.all()[0].in_flight == 0


async def test_a_client_that_leaves_at_the_gate_of_a_publication_was_no_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        await s.control.pause()
        call = asyncio.ensure_future(s.chat().__aenter__())
        assert not (await asyncio.wait([call], timeout=0.1))[0]
        call.cancel()
        await asyncio.wait([call])
        await s.control.resume()
        async with s.chat() as answer:
            assert answer.status == 200
        assert len(s.engine.served) == len(await s.opened()) == 1


async def test_a_client_that_leaves_after_the_end_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one"))
        async with s.chat(stream=True) as answer:
            await answer.read()
            answer.close()
        assert [c.status for c in s.frames(Close)] == ["ok"]


async def test_calls_of_others_go_on(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with serving(tmp_path) as s:
        s.engine.script(Turn("stays one", gate=gate), Turn("leaves", gate=Gate(is_open=False)))
        staying = asyncio.ensure_future(_read(s))
        async with asyncio.timeout(WAIT_S):
            while not s.engine.served:  # else the other one may get its turn
                await asyncio.sleep(0.005)
        await leave(s, True, 0)
        assert [c.status for c in await s.closed()] == ["aborted"]
        gate.open()
        assert "stays" in await staying
        assert sorted(c.status for c in await s.closed(2)) == ["aborted", "ok"]


async def _read(s: Serving) -> str:
    async with s.chat(stream=True) as answer:
        text: str = await answer.text()
        return text
