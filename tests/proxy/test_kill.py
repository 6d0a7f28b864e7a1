"""``kill -9`` of the proxy under load: what a client could act on is in the data, once; cut calls are rows too.

The ledger of the clients (call id and answer, noted only once the answer was whole) is compared with the dataset
after the last restart. ``FORGE_KILL_CYCLES`` sets how often it is killed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from forge.client import ControlClient
from forge.proxy.calls.call import CALL_HEADER
from forge.storage.dataset import Dataset
from forge.storage.records import Call
from tests.engine import ScriptedEngine, Turn
from tests.proxy.process import ProxyProcess, proxy_process

pytestmark = pytest.mark.process

CYCLES = int(os.environ.get("FORGE_KILL_CYCLES", "3"))
CLIENTS = 6
LOAD_S = 60
LIFE = (1, 40)
"""Whole answers that a proxy lives for."""


@dataclass
class Ledger:
    whole: dict[str, str] = field(default_factory=dict)
    """Call id to the sha256 of an answer that was read to its end mark."""
    begun: set[str] = field(default_factory=set)
    """Calls whose headers arrived."""
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note(self, call_id: str, answer: bytes) -> None:
        self.whole[call_id] = hashlib.sha256(answer).hexdigest()
        async with self.news:
            self.news.notify_all()

    async def reaches(self, count: int) -> None:
        async with asyncio.timeout(LOAD_S), self.news:
            await self.news.wait_for(lambda: len(self.whole) >= count)


async def client(proxy: ProxyProcess, number: int, ledger: Ledger) -> None:
    """Calls, streams and not, until the proxy is gone."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        turn = 0
        while True:
            turn += 1
            stream = (number + turn) % 2 == 0
            messages = [{"role": "user", "content": f"client {number} turn {turn} " + "word " * (turn % 30)}]
            body = {"model": "policy", "messages": messages, "stream": stream}
            try:
                async with http.post(f"{proxy.base_url}/chat/completions", json=body) as answer:
                    call_id = answer.headers.get(CALL_HEADER)
                    if call_id is not None:
                        ledger.begun.add(call_id)
                    got = await answer.read()
            except (aiohttp.ClientError, TimeoutError, ConnectionError):
                return
            if call_id is not None and answer.status == 200 and (not stream or got.endswith(b"data: [DONE]\n\n")):
                await ledger.note(call_id, got)


async def test_no_answer_is_lost_or_doubled(tmp_path: Path) -> None:
    data, ledger = tmp_path / "data", Ledger()
    chance = random.Random(7)
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("word " * 40, tool_calls=[("run", '{"cmd": "ls"}')])
        for _ in range(CYCLES):
            async with proxy_process(data, engine.url) as proxy:
                load = [asyncio.ensure_future(client(proxy, n, ledger)) for n in range(CLIENTS)]
                await ledger.reaches(len(ledger.whole) + chance.randint(*LIFE))
                await proxy.kill()
                await asyncio.gather(*load)
        async with proxy_process(data, engine.url) as proxy:
            assert await proxy.stop() == 0, proxy.log.read_text()
    rows = list(Dataset(data).calls())
    check(ledger, rows)


def check(ledger: Ledger, rows: list[Call]) -> None:
    by_id = {row.call_id: row for row in rows}
    assert [c for c, n in Counter(row.call_id for row in rows).items() if n > 1] == [], "nothing twice"
    assert ledger.begun - by_id.keys() == set(), "every accepted call is a row"
    for call_id, sha256 in ledger.whole.items():
        row = by_id[call_id]
        assert (row.status, row.delivered_sha256, row.trainable) == ("ok", sha256, True)
        assert len(row.output_ids) == len(row.output_log_probs) == row.completion_tokens
    for row in rows:
        if row.call_id not in ledger.whole:
            assert row.status in ("interrupted", "ok", "aborted"), row.status
    assert any(row.status == "interrupted" for row in rows), "cut calls are rows too"


def control_of(proxy: ProxyProcess) -> ControlClient:
    return ControlClient(proxy.control_url, proxy.token)


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
