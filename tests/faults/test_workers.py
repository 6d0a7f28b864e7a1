"""R1 with workers: one, or the process that leads them, is killed under load. Nothing is lost or doubled, in either."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from forge.client import ControlClient, Ticket
from forge.storage.dataset import Dataset
from tests.engine import ScriptedEngine
from tests.faults.ledger import Ledger, compare
from tests.faults.load import client
from tests.faults.soak import LONG, chance, rounds
from tests.faults.test_kill import CLIENTS, KEEP, LIFE, answering
from tests.proxy.process import ProxyProcess, proxy_process

pytestmark = pytest.mark.process

TURNS = 12
"""Calls of each client in one round."""
START_S = 120.0


@pytest.mark.timeout(LONG)
async def test_a_killed_worker_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Clients whose sessions live in both workers go on over it; by turns the parent is killed at the end, too."""
    data, ledger, dice = tmp_path / "data", Ledger(), chance("workers")
    async with ScriptedEngine() as engine:
        answering(engine)
        for turn in range(rounds(3, 60)):
            async with (
                proxy_process(data, engine.url, "--workers", "2", *KEEP, start_s=START_S) as proxy,
                ControlClient(proxy.control_url, proxy.token) as control,
            ):
                tickets = [await control.open_session(task_id="t") for _ in range(CLIENTS)]
                load = [
                    asyncio.ensure_future(client(t.base_url, n, ledger, limit=TURNS, key=t.api_key))
                    for n, t in enumerate(tickets)
                ]
                for _ in range(2):
                    await _reaches(ledger, dice.randint(*LIFE), load)
                    _kill(dice.choice(await _workers(control)))
                await asyncio.gather(*load)
                await _end(proxy, control, tickets, killed=turn % 2 == 1)
        async with proxy_process(data, engine.url, "--workers", "2", *KEEP, start_s=START_S) as proxy:
            assert await proxy.stop() == 0, proxy.log.read_text()
        rows = compare(ledger, engine.served, data)
    assert len({row.session_id for row in rows}) == len(list(Dataset(data).sessions()))
    print(f"{len(ledger.whole)} answers read to their end, {len(ledger.acted)} acted on and cut, {len(rows)} rows")


async def _reaches(ledger: Ledger, chunks: int, load: list[asyncio.Future[None]]) -> None:
    """Or the load ends before."""
    moment = asyncio.ensure_future(ledger.reaches(ledger.chunks + chunks))
    ended = asyncio.ensure_future(asyncio.wait(load))
    await asyncio.wait((moment, ended), return_when=asyncio.FIRST_COMPLETED)
    moment.cancel()
    ended.cancel()


async def _workers(control: ControlClient) -> list[int]:
    return [worker["pid"] for worker in (await control.status())["workers"]]


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def _end(proxy: ProxyProcess, control: ControlClient, tickets: list[Ticket], *, killed: bool) -> None:
    """Half of the sessions are closed: what they give has all their calls, and no other."""
    for ticket in tickets[::2]:
        done = await control.close_session(ticket.session_id, reward=1.0)
        calls = await control.calls(ticket.session_id)
        assert len({call.call_id for call in calls}) == done.calls.calls
        assert {call.session_id for call in calls} == {ticket.session_id}
        assert done.calls.statuses.keys() <= {"ok", "interrupted", "aborted"}
    if killed:
        await proxy.kill()
    else:
        assert await proxy.stop() == 0, proxy.log.read_text()
