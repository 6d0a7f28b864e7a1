"""R1, R7: processes killed under load. What a client could act on is in the data, once; cut calls are rows too."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import pytest

from forge.client import ControlClient
from forge.storage.dataset import Dataset
from tests.engine import Gate, ScriptedEngine, Turn
from tests.faults.ledger import Ledger, compare
from tests.faults.load import ARGUMENTS, body_of, client, could_act
from tests.faults.soak import LONG, SOAK, chance, rounds
from tests.proxy.process import ProxyProcess, proxy_process

pytestmark = pytest.mark.process

CLIENTS = 8
LIFE = (1, 400)
"""Pieces of answers that a process lives for: it dies at any moment of a stream."""
KEEP = ("--journal-keep", "100G")
"""The comparison reads the whole journal."""


def answering(engine: ScriptedEngine) -> None:
    engine.default = lambda request: Turn("word " * 20, tool_calls=[("run", ARGUMENTS)])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("proxies", [1, 2])
async def test_no_answer_is_lost_or_doubled(tmp_path: Path, proxies: int) -> None:
    """By turns the decoder, or a proxy, is killed while its clients call. Field cases 103, 184: nothing is silent. Some
    lives have no decoder: the next one has more to catch up with, and a life costs half as much."""
    data, ledger, dice = tmp_path / "data", Ledger(), chance("kill")
    ready_s: list[float] = []
    async with ScriptedEngine() as engine:
        answering(engine)
        for _ in range(rounds(30, 400) if proxies == 1 else rounds(4, 100)):
            async with AsyncExitStack() as stack:
                began, fate = time.monotonic(), dice.choice(["none", "none", "lives", "dies"])
                more = ["--no-decoder"] if fate == "none" else []
                running = [await _start(stack, tmp_path, data, engine.url, n, *more) for n in range(proxies)]
                ready_s.append(time.monotonic() - began)
                load = [asyncio.ensure_future(client(running[n % proxies].base_url, n, ledger)) for n in range(CLIENTS)]
                if fate == "dies":
                    await ledger.reaches(ledger.chunks + dice.randint(*LIFE))
                    for decoder in children(running[0].process.pid):
                        os.kill(decoder, signal.SIGKILL)
                await ledger.reaches(ledger.chunks + dice.randint(*LIFE))
                await asyncio.gather(*(proxy.kill() for proxy in running))
                await asyncio.gather(*load)
        for number in range(proxies):
            async with AsyncExitStack() as stack:
                last = await _start(stack, tmp_path, data, engine.url, number)
                assert await last.stop() == 0, last.log.read_text()
        rows = compare(ledger, engine.served, data)
    assert any(row.status == "interrupted" for row in rows), "cut calls are rows too"
    print(f"{len(ledger.whole)} answers read to their end, {len(ledger.acted)} acted on and cut, {len(rows)} rows;")
    print(f"start to ready: median {sorted(ready_s)[len(ready_s) // 2]:.2f} s, longest {max(ready_s):.2f} s")


async def _start(stack: AsyncExitStack, tmp_path: Path, data: Path, url: str, number: int, *more: str) -> ProxyProcess:
    own = tmp_path / f"p{number}" / "data"
    own.parent.mkdir(exist_ok=True)
    options = ("--writer", str(number), *KEEP, *more)
    return await stack.enter_async_context(proxy_process(data, url, *options, beside=own.parent))


async def test_what_could_be_acted_on_before_a_kill_is_in_the_row(tmp_path: Path) -> None:
    """In each dialect the first of two tool calls is whole when the proxy dies: its client may have run it."""
    data, ledger = tmp_path / "data", Ledger()
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        async with proxy_process(data, engine.url, *KEEP, "--no-decoder") as proxy:
            root = proxy.base_url.removesuffix("/v1")
            readers = [await _acts(http, root, engine, wire, ledger) for wire in ("responses", "messages", "gemini")]
            assert not any(served.ended for served in engine.served[-3:])
            await proxy.kill()
            await asyncio.gather(*readers)
        async with proxy_process(data, engine.url, *KEEP) as proxy:
            assert await proxy.stop() == 0
        rows = compare(ledger, engine.served, data)
    assert [(row.status, row.trainable) for row in rows] == [("interrupted", False)] * 3


async def _acts(
    http: aiohttp.ClientSession, root: str, engine: ScriptedEngine, wire: str, ledger: Ledger
) -> asyncio.Future[None]:
    """A client that has a whole tool call of an answer that is not over; it reads on until the answer breaks off."""
    gate, got = Gate(is_open=False), bytearray()
    long = json.dumps({"a": "word " * 200})
    engine.script(Turn("first", tool_calls=[("run", ARGUMENTS), ("run", long)], gate=gate))
    path, body = body_of(wire, True, f"two tools {wire}")
    answer = await http.post(root + path, data=body)
    reader = asyncio.ensure_future(_read_into(answer, got))
    async with asyncio.timeout(60):
        while not could_act(wire, bytes(got)):
            gate.release()
            await asyncio.wait({reader}, timeout=0.02)
    call_id = answer.headers["X-Forge-Call-Id"]
    ledger.begun.add(call_id)
    ledger.acted[call_id] = [ARGUMENTS]
    return reader


async def _read_into(answer: aiohttp.ClientResponse, got: bytearray) -> None:
    with suppress(aiohttp.ClientError):
        async for piece in answer.content.iter_any():
            got += piece
    answer.release()


async def test_a_session_goes_on_after_a_kill_and_gives_all_its_samples(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        ticket = None
        for turn in range(2):
            async with (
                proxy_process(data, engine.url) as proxy,
                ControlClient(proxy.control_url, proxy.token) as control,
            ):
                ticket = ticket or await control.open_session(task_id="t")
                headers = {"Authorization": f"Bearer {ticket.api_key}"}
                body = {"model": "policy", "messages": [{"role": "user", "content": f"turn {turn}"}]}
                async with http.post(f"{proxy.base_url}/chat/completions", json=body, headers=headers) as answer:
                    assert answer.status == 200
                if turn == 0:
                    await proxy.kill()
                    continue
                closed = await control.close_session(ticket.session_id, reward=1.0)
                assert closed.calls.statuses == {"ok": 2}
                assert len(closed.samples) == 2
                assert await proxy.stop() == 0
    assert len({c.call_id for c in Dataset(data).calls()}) == 2
    assert [s.status for s in Dataset(data).sessions()] == ["completed"]
    assert len(list(Dataset(data).samples())) == 2


@pytest.mark.timeout(LONG)
async def test_mixed_load_leaves_nothing_behind(tmp_path: Path) -> None:
    """R7: open files and memory are the same after thousands of calls as after the first hundreds."""
    data, ledger = tmp_path / "data", Ledger()
    async with ScriptedEngine() as engine:
        answering(engine)
        async with proxy_process(data, engine.url, *KEEP) as proxy:
            pid, taken = proxy.process.pid, []
            for _ in range(4):
                await asyncio.gather(*(client(proxy.base_url, n, ledger, limit=rounds(12, 640)) for n in range(4)))
                taken.append((len(os.listdir(f"/proc/{pid}/fd")), _rss(pid)))
            assert await proxy.stop() == 0
        rows = compare(ledger, engine.served, data)
    print(f"{len(rows)} calls; open files and resident MB: {taken}")
    assert taken[-1][0] <= taken[1][0] + 4, "open files grow"
    assert taken[-1][1] <= taken[1][1] * (1.05 if SOAK else 1.3) + 5, "memory grows"


def _rss(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
