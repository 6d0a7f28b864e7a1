"""A proxy of several processes, from outside: as one that is alone, whichever worker a call comes to."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from rich.console import Console

from forge.client import ControlClient, Ticket
from forge.proxy.config import ProxyConfig
from forge.proxy.tasks import Tasks
from forge.proxy.workers.child import WorkerProcess
from forge.proxy.workers.home import Homes
from forge.proxy.workers.messages import Begin, Strays, plain
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.records import Call
from forge.top import frame
from tests.engine import Gate, ScriptedEngine, Turn
from tests.proxy.process import ProxyProcess, argv, proxy_process, run_to_end

pytestmark = pytest.mark.process

WAIT_S = 60.0


@dataclass
class Crewed:
    """A proxy with workers, and one client whose connections its sessions share."""

    proxy: ProxyProcess
    control: ControlClient
    http: aiohttp.ClientSession
    data: Path

    @property
    def port(self) -> str:
        return self.proxy.base_url.rpartition(":")[2].partition("/")[0]

    def chat(self, ticket: Ticket | None, *said: str, **members: Any) -> Any:
        """A request context; ``said`` are the turns of a history, the user's first."""
        roles = ("user", "assistant")
        messages = [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(said)]
        base = ticket.base_url if ticket is not None else self.proxy.base_url
        headers = {"Authorization": f"Bearer {ticket.api_key}"} if ticket is not None else {}
        body = {"model": "policy", "messages": messages} | members
        return self.http.post(f"{base}/chat/completions", json=body, headers=headers)

    async def text(self, ticket: Ticket | None, *said: str) -> str:
        async with self.chat(ticket, *said) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["choices"][0]["message"]["content"])

    async def one_each(self, count: int = 2) -> list[Ticket]:
        """An open session of each worker."""
        found: dict[int, Ticket] = {}
        while len(found) < count:
            ticket = await self.control.open_session(task_id="t")
            found[Homes(count).of(ticket.session_id)] = ticket
        return [found[number] for number in range(count)]

    async def pids(self) -> list[int]:
        return [worker["pid"] for worker in (await self.control.status())["workers"]]

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """The state, once its members are as wanted."""
        async with asyncio.timeout(WAIT_S):
            while True:
                state = await self.control.status()
                if all(state[name] == value for name, value in wanted.items()):
                    return state
                await asyncio.sleep(0.02)

    async def all_up(self, *, starts: Sequence[int]) -> None:
        async with asyncio.timeout(WAIT_S):
            while True:
                workers = (await self.control.status())["workers"]
                if all(each["up"] for each in workers) and [each["starts"] for each in workers] == list(starts):
                    return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def crewed(tmp: Path, engine: ScriptedEngine, *more: str, workers: int = 2) -> AsyncIterator[Crewed]:
    data = tmp / "data"
    async with (
        proxy_process(data, engine.url, "--workers", str(workers), *more, start_s=2 * WAIT_S) as proxy,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=4), timeout=aiohttp.ClientTimeout(total=WAIT_S)
        ) as http,
        ControlClient(proxy.control_url, proxy.token) as control,
    ):
        engine.served.clear()  # what the probe asked
        yield Crewed(proxy, control, http, data)


def rows(data: Path) -> list[Call]:
    return sorted(Dataset(data).calls(), key=lambda row: row.start_us)


async def test_sessions_of_all_workers_are_one_dataset(tmp_path: Path) -> None:
    """Each is whole, though all of them share a few connections. Field cases 33, 34: those without a key too."""
    async with ScriptedEngine() as engine, crewed(tmp_path, engine) as c:
        engine.default = lambda request: Turn(f"answer {len(request['messages'])}")
        tickets = [*await c.one_each(), *await c.one_each()]
        for turn in range(3):
            for ticket in tickets:
                history = [text for n in range(turn) for text in (f"{ticket.session_id} {n}", f"answer {2 * n + 1}")]
                await c.text(ticket, *history, f"{ticket.session_id} {turn}")
        await c.text(None, "hello")
        await c.text(None, "hello", "answer 1", "go on")
        state = await c.until(sessions_open=5, calls_ended=14)
        assert [worker["calls"] for worker in state["workers"]] == [8, 6], "those without a key are the first one's"
        assert sum(worker["sessions"] for worker in state["workers"]) == 5
        with (out := Console(width=160)).capture() as shown:
            out.print(frame(state, rows=9))
        assert all(str(worker["pid"]) in shown.get() for worker in state["workers"])
        async with c.http.get(
            f"{c.proxy.control_url}/metrics", headers={"Authorization": f"Bearer {c.proxy.token}"}
        ) as said:
            metrics = (await said.text()).splitlines()
        assert 'forge_calls_total{dialect="chat",kind="main",status="ok"} 14.0' in metrics
        assert "forge_sessions_open 5.0" in metrics
        assert f'forge_replica_up{{replica="{engine.url}"}} 1.0' in metrics
        assert "forge_decoder_up 1.0" in metrics
        assert await c.control.capacity() == {"sessions": 8192, "open": 5, "free": 8187, "calls": 0}
        cursor, ended = "", []
        for ticket in tickets:
            news = asyncio.ensure_future(c.control.finished(cursor, wait_s=30))
            done = await c.control.close_session(ticket.session_id, reward=1.0)
            assert (done.calls.statuses, len(done.samples)) == ({"ok": 3}, 1)
            sessions, cursor = await news
            ended += [session.session_id for session in sessions]
        assert ended == [ticket.session_id for ticket in tickets], "whoever waits hears of each, once"
        assert await c.proxy.stop() == 0, c.proxy.log.read_text()
    found = rows(c.data)
    assert len(found) == 14
    assert all(row.status == "ok" and row.trainable for row in found)
    assert {row.session_id for row in found[-2:]} not in [{t.session_id} for t in tickets]
    assert len({row.session_id for row in found}) == 5, "a conversation without a key is one session"
    assert {path.name[:7] for path in (c.data / "calls").rglob("*.parquet")} == {"part-00", "part-01"}
    assert len(list(Dataset(c.data).samples())) == 5


async def test_a_killed_worker_comes_back_with_its_sessions(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with ScriptedEngine() as engine, crewed(tmp_path, engine) as c:
        tickets = await c.one_each()
        for ticket in tickets:
            await c.text(ticket, "first")
        engine.script(Turn("one two three", gate=gate))
        async with c.chat(tickets[1], "cut", stream=True) as answer:
            gate.release()
            await answer.content.readany()
            os.kill((await c.pids())[1], signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        async with aiohttp.ClientSession() as c.http:  # an idle connection to it may not have been seen to end
            assert await c.text(tickets[0], "others go on") == "ok"
            assert await c.text(tickets[1], "so does it, once it is back") == "ok"
        await c.all_up(starts=[1, 2])
        done = [await c.control.close_session(ticket.session_id, reward=1.0) for ticket in tickets]
        assert [each.calls.statuses for each in done] == [{"ok": 2}, {"ok": 2, "interrupted": 1}]
        assert await c.proxy.stop() == 0, c.proxy.log.read_text()
    assert sorted(row.status for row in rows(c.data)) == ["interrupted", *["ok"] * 4]


async def test_a_publication_waits_for_the_calls_of_all_workers(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with ScriptedEngine() as engine, crewed(tmp_path, engine) as c:
        tickets = await c.one_each()
        engine.default = lambda request: Turn("one two", gate=gate)
        running = [asyncio.ensure_future(c.text(ticket, "old")) for ticket in tickets]
        await c.until(calls_running=2)
        publishing = asyncio.ensure_future(c.control.publish(version=1, path="/w/1", lineage="main", digest="d"))
        async with asyncio.timeout(WAIT_S):
            while await c.control.ready():
                await asyncio.sleep(0.02)
        waiting = [asyncio.ensure_future(c.text(ticket, "new")) for ticket in tickets]
        assert [path for path, _ in engine.admin] == [], "nothing is loaded while calls run"
        gate.open()
        assert (await publishing).failed == {}
        await asyncio.gather(*running, *waiting)
        assert (await c.control.open_session()).policy_version == 1
        assert (await c.control.upstreams())[0]["policy_version"] == 1
        assert await c.proxy.stop() == 0, c.proxy.log.read_text()
        found = [(row.policy_version_start, row.policy_version_end) for row in rows(c.data)]
        assert found == [(0, 0), (0, 0), (1, 1), (1, 1)]
        # Both journals remember what was published, so a restart knows the lineage.
        engine.weight_version, engine.weight_digest = "1", "d"
        async with crewed(tmp_path, engine) as again:
            assert (await again.control.upstreams())[0]["policy_lineage"] == "main"
            assert await again.proxy.stop() == 0


@pytest.mark.parametrize("mode", ["keep", "abort"])
async def test_a_call_that_straddles_a_publication_says_so(tmp_path: Path, mode: Any) -> None:
    gate = Gate(is_open=False)
    async with ScriptedEngine() as engine, crewed(tmp_path, engine) as c:
        tickets = await c.one_each()
        engine.script(Turn("one two three", gate=gate), Turn("one two three", gate=gate))
        gate.release(2)
        running = [asyncio.ensure_future(_status(c, ticket)) for ticket in tickets]
        await c.until(calls_running=2)
        await gate.waiting.wait()
        await c.control.publish(version=1, path="/w/1", mode=mode)
        gate.open()
        await asyncio.gather(*running)
        assert await c.proxy.stop() == 0, c.proxy.log.read_text()
    for row in rows(c.data):
        if mode == "keep":
            assert (row.status, row.policy_version_start, row.policy_version_end) == ("ok", 0, 1)
        else:
            assert row.status == "aborted"


async def _status(c: Crewed, ticket: Ticket) -> int:
    async with c.chat(ticket, "straddles") as answer:
        await answer.read()
        return int(answer.status)


async def test_what_the_owner_says_of_policy_servers_holds_in_all_workers(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, ScriptedEngine() as other, crewed(tmp_path, engine) as c:
        tickets = await c.one_each()
        await c.control.pause()
        waiting = [asyncio.ensure_future(_status(c, ticket)) for ticket in tickets]
        await c.control.status()
        assert engine.served == []
        await c.control.resume()
        assert await asyncio.gather(*waiting) == [200, 200]
        await c.control.add_upstream(other.url)
        other.served.clear()
        await c.control.remove_upstream(engine.url)
        assert [await _status(c, ticket) for ticket in tickets] == [200, 200]
        assert (len(engine.served), len(other.served)) == (2, 2)
        await other.refuse()
        assert {await _status(c, ticket) for ticket in tickets} == {503}
        assert await c.control.ready() is False
        await other.accept()
        async with asyncio.timeout(WAIT_S):
            while not await c.control.ready():
                await asyncio.sleep(0.02)
        assert [await _status(c, ticket) for ticket in tickets] == [200, 200]
        assert await c.proxy.stop() == 0, c.proxy.log.read_text()


async def test_sigterm_lets_the_calls_of_all_workers_end(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with ScriptedEngine() as engine, crewed(tmp_path, engine) as c:
        tickets = await c.one_each()
        engine.script(Turn("one two three", gate=gate), Turn("one two three", gate=gate))
        running = [asyncio.ensure_future(c.text(ticket, "last")) for ticket in tickets]
        async with asyncio.timeout(WAIT_S):
            while len(engine.served) < 2:
                await asyncio.sleep(0.01)
        c.proxy.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            while {await _status(c, ticket) for ticket in tickets} != {503}:
                pass
        with pytest.raises(Unavailable, match="stopping"):
            await c.control.open_session()
        gate.open()
        assert await asyncio.gather(*running) == ["one two three"] * 2
        assert await asyncio.wait_for(c.proxy.process.wait(), WAIT_S) == 0, c.proxy.log.read_text()
    assert [row.status for row in rows(c.data)][:2] == ["ok", "ok"]


async def test_workers_end_with_their_parent_and_the_next_goes_on(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    async with ScriptedEngine() as engine:
        async with crewed(tmp_path, engine) as c:
            tickets, pids = await c.one_each(), await c.pids()
            port = c.port
            engine.script(Turn("one two three", gate=gate))
            async with c.chat(tickets[1], "cut", stream=True) as answer:
                gate.release()
                await answer.content.readany()
                await c.proxy.kill()
                began = time.monotonic()
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()
        async with crewed(tmp_path, engine, "--port", port) as c:
            print(f"killed to ready: {time.monotonic() - began:.2f} s")
            still = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists()]
            assert still == [], "nobody serves on what the parent was said last"
            for ticket in tickets:
                assert await c.text(ticket, "again") == "ok"
            done = [await c.control.close_session(ticket.session_id, reward=1.0) for ticket in tickets]
            assert [each.calls.statuses for each in done] == [{"ok": 1}, {"ok": 1, "aborted": 1}]
            assert await c.proxy.stop() == 0, c.proxy.log.read_text()


async def test_another_number_of_workers_finds_every_session(tmp_path: Path) -> None:
    tickets: list[Ticket] = []
    ended: Ticket | None = None
    port = "0"
    async with ScriptedEngine() as engine:
        for workers in (1, 2, 3):
            async with crewed(tmp_path, engine, "--port", port, workers=workers) as c:
                port = c.port
                for _ in range(4):
                    tickets.append(await c.control.open_session(task_id="t"))
                for ticket in tickets:
                    await c.text(ticket, f"with {workers}")
                ended = ended or tickets.pop()
                if workers == 1:
                    await c.control.close_session(ended.session_id)
                async with c.chat(ended, "late") as answer:
                    assert answer.status == 409, "what is closed stays closed"
                for n, ticket in enumerate(tickets if workers == 3 else ()):
                    done = await c.control.close_session(ticket.session_id, reward=1.0)
                    assert done.calls.statuses == {"ok": 3 if n < 3 else 2 if n < 7 else 1}
                assert await c.proxy.stop() == 0, c.proxy.log.read_text()
    sessions = [session.session_id for session in Dataset(tmp_path / "data").sessions()]
    assert sorted(sessions) == sorted({ticket.session_id for ticket in (*tickets, ended) if ticket})


async def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with proxy_process(tmp_path / "data", None, "--no-decoder") as proxy:
        code, said = await run_to_end([*argv(tmp_path / "data", None, tmp_path / "other.json"), "--workers", "2"])
        assert code == 4
        assert f"in use by pid {proxy.process.pid}" in said
        assert "Traceback" not in said
        assert await proxy.stop() == 0


async def test_a_worker_that_does_not_answer_is_replaced(tmp_path: Path) -> None:
    """It would go on by what no longer holds: publications would wait for it, or meet its calls."""
    (tmp_path / "data").mkdir()
    config = ProxyConfig(data=tmp_path / "data", run_id="run")
    begin = Begin(
        config=plain(config), number=0, workers=1, token="", base_url="", folder=str(tmp_path / "sockets"), ports=()
    )
    replaced = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = WorkerProcess(begin, listener, print)
        async with Tasks() as tasks:
            await worker.start()
            tasks.start(worker.run(lambda worker: replaced.set()), "worker")
            first = worker.pid
            assert first is not None
            os.kill(first, signal.SIGSTOP)
            assert await worker.ask(Strays(number=1, of=[]), 0.5) is None
            await asyncio.wait_for(replaced.wait(), WAIT_S)
            assert worker.pid != first
            answer = await worker.ask(Strays(number=2, of=[]))
            assert answer is not None
            assert answer.number == 2
            await worker.end()
