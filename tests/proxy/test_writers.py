"""Several proxies on one data directory: each its own journal and sessions, one dataset, one decoder at a time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from forge.proxy.config import ProxyConfig
from forge.proxy.recording.decoder import Decoder
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from tests.engine import Turn
from tests.postgres import postgres
from tests.proxy.serving import serving


@pytest.mark.process
async def test_two_proxies_write_one_dataset(tmp_path: Path) -> None:
    """Each with a decoder of its own: the second stands by, and takes over when the first proxy ends."""
    async with AsyncExitStack() as first, serving(tmp_path, writer=1, decoder=True) as two:
        one = await first.enter_async_context(serving(tmp_path, writer=0, decoder=True))
        sessions = []
        for s in (one, two):
            s.engine.script(Turn("word"))
            ticket = await s.control.open_session(group_id="g")
            async with s.chat(key=ticket.api_key, base=ticket.base_url) as answer:
                assert answer.status == 200
            await s.control.close_session(ticket.session_id, reward=1.0)
            sessions.append(ticket.session_id)
        await first.aclose()
        assert {s.session_id for s in Dataset(tmp_path / "data").sessions(writer=0)} == {sessions[0]}
        late = await two.control.open_session()
    dataset = Dataset(tmp_path / "data")
    assert [s.session_id for s in dataset.sessions()] == [*sessions, late.session_id]
    assert {s.session_id for s in dataset.sessions(writer=1)} == {sessions[1], late.session_id}
    assert {sample.session_id for sample in dataset.samples()} == set(sessions)
    writers = {path.name[:7] for path in (tmp_path / "data" / "calls").rglob("*.parquet")}
    assert writers == {"part-00", "part-01"}


async def test_a_proxy_that_starts_leaves_the_sessions_of_another_alone(tmp_path: Path) -> None:
    """It ends the run's sessions of its own journal when it stops, as one that took over from a dead one would."""
    async with serving(tmp_path, writer=0) as one:
        mine = await one.control.open_session()
        one.proxy.deps.recorder.cut()
        decoder = Decoder(tmp_path / "data")
        decoder.catch_up()
        decoder.close()
        assert [s.session_id for s in Dataset(tmp_path / "data").sessions()] == [mine.session_id]
        async with serving(tmp_path, writer=1, end_sessions=True) as two:
            assert two.proxy.deps.registry.get(mine.session_id) is None
        async with one.chat(key=mine.api_key, base=mine.base_url) as answer:
            assert answer.status == 200
        closed = await one.control.close_session(mine.session_id, reward=1.0)
        assert closed.session.status == "completed"


async def test_a_session_is_not_opened_again_in_another_journal(tmp_path: Path) -> None:
    """Whether the decoder has seen it or not: its calls belong where the others are."""
    async with serving(tmp_path, writer=0) as one, serving(tmp_path, writer=1) as two:
        ticket = await one.control.open_session()
        for _ in range(2):
            async with two.chat(key=ticket.api_key) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (409, "session_unknown")
            one.proxy.deps.recorder.cut()
            decoder = Decoder(tmp_path / "data")
            decoder.catch_up()
            decoder.close()
        async with one.chat(key=ticket.api_key) as answer:
            assert answer.status == 200
    assert [s.status for s in Dataset(tmp_path / "data").sessions()] == ["open"]


async def test_a_dead_proxys_journal_is_ended_by_another_process(tmp_path: Path) -> None:
    """What a node leaves behind: a successor on its journal closes its sessions as interrupted, and nobody else's."""
    data = tmp_path / "data"
    async with serving(tmp_path, writer=0) as one:
        kept = await one.control.open_session()
        line = [sys.executable, "-c", DIES, str(data)]
        child = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert child.returncode == 9, child.stderr
        lost = child.stdout.strip()
        async with serving(tmp_path, writer=1, upstreams=(), end_sessions=True):
            pass
        assert (await one.control.session(kept.session_id)).status == "open"
    decoder = Decoder(data)
    decoder.catch_up()
    decoder.close()
    assert {s.session_id: s.status for s in Dataset(data).sessions()} == {
        kept.session_id: "open",
        lost: "interrupted",
    }


DIES = """
import asyncio, os, pathlib, sys
from forge.client import ControlClient
from forge.proxy.app import serve
from forge.proxy.config import ProxyConfig

async def main():
    data = pathlib.Path(sys.argv[1])
    config = ProxyConfig(data=data, run_id="run", writer=1, port=0, control_port=0, decoder=False)
    async with serve(config) as proxy, ControlClient(proxy.control_url, proxy.control_token) as control:
        print((await control.open_session()).session_id, flush=True)
        os._exit(9)

asyncio.run(main())
"""


@pytest.mark.process
async def test_proxies_of_several_data_directories_share_one_catalog(tmp_path: Path) -> None:
    with postgres() as server:
        url = server.database()
        folders = [tmp_path / name for name in "ab"]
        async with (
            serving(folders[0], decoder=True, catalog=url) as a,
            serving(folders[1], decoder=True, catalog=url) as b,
        ):
            tickets = [await s.control.open_session(task_id="t") for s in (a, b, b)]
            for s, ticket in zip((a, b, b), tickets, strict=True):
                await s.control.close_session(ticket.session_id, reward=1.0)
        catalog = Catalog(folders[0] / "data", url)
        assert sorted(run["sessions"] for run in catalog.runs()) == [1, 2]
        assert {row["session_id"] for row in catalog.sessions()} == {ticket.session_id for ticket in tickets}
        catalog.close()
    assert not list(tmp_path.rglob("catalog.db"))


async def test_a_catalog_that_cannot_be_is_refused_when_the_proxy_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not usable"):
        async with serving(tmp_path, decoder=True, catalog="mongodb://user:hunter2@host/name"):
            pass


def test_a_writer_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no writer 64"):
        ProxyConfig(data=tmp_path, run_id="run", writer=64)
