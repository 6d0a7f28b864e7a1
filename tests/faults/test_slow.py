"""R11: hundreds of clients that never finish their request, and many that never read: others do not notice."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import pytest

from tests.engine import Fault, ScriptedEngine, Turn
from tests.faults.ledger import Ledger, compare
from tests.faults.load import ARGUMENTS, client
from tests.faults.memory import peak_mb
from tests.faults.soak import rounds
from tests.faults.test_kill import KEEP
from tests.faults.test_streams import pieces
from tests.proxy.process import proxy_process

pytestmark = pytest.mark.process

HALF_OPEN = 500
SLOW = 50
HEALTHY = 4
CALLS = rounds(10, 400)
"""Of each healthy client, before and meanwhile."""
LARGE = 1000
"""Pieces of 64 KB that a slow reader is sent: far more than all buffers on the way."""
SLOWER = 3.0
MEMORY_MB = 600


@pytest.mark.timeout(900)
async def test_who_never_asks_and_who_never_reads_hold_up_nobody(tmp_path: Path) -> None:
    data, ledger = tmp_path / "data", Ledger()
    async with ScriptedEngine() as engine, proxy_process(data, engine.url, *KEEP) as proxy:
        engine.default = lambda request: Turn("word " * 20, tool_calls=[("run", ARGUMENTS)])
        before = await _healthy(proxy.base_url, ledger)
        large = (pieces()[0], *[b": " + b"x" * (64 << 10) + b"\n\n"] * LARGE, *pieces()[-3:])
        engine.script(*[Turn(fault=Fault(raw=large))] * SLOW)
        with ExitStack() as stack:
            slow = [stack.enter_context(_deaf(proxy.base_url)) for _ in range(SLOW)]
            async with asyncio.timeout(60):
                while len(engine.served) < len(ledger.begun) + SLOW:
                    await asyncio.sleep(0.01)
            for _ in range(HALF_OPEN):
                stack.enter_context(_half_open(proxy.base_url))
            meanwhile = await _healthy(proxy.base_url, ledger)
            behind = [served for served in engine.served if served.turn.fault.raw is not None]
            assert len(behind) == len(slow)
            assert not any(served.ended for served in behind), "an engine is not read faster than its client reads"
        peak = peak_mb(proxy.process.pid)
        assert await proxy.stop() == 0, proxy.log.read_text()
        rows = compare(ledger, engine.served, data)
    assert len(ledger.whole) == 2 * HEALTHY * CALLS
    assert [row.status for row in rows if row.call_id not in ledger.whole] == ["aborted"] * SLOW
    ratio = median(meanwhile) / median(before)
    print(
        f"a round of calls: {median(before) * 1e3:.0f} ms alone, {ratio:.2f} times that meanwhile; peak {peak:.0f} MB"
    )
    assert ratio < SLOWER
    assert peak < MEMORY_MB


async def _healthy(base_url: str, ledger: Ledger) -> list[float]:
    """Seconds of each round, in which every client calls once."""
    taken = []
    for turn in range(CALLS):
        began = time.perf_counter()
        await asyncio.gather(*(client(base_url, n, ledger, limit=1, first=turn) for n in range(HEALTHY)))
        taken.append(time.perf_counter() - began)
    return taken


def _deaf(base_url: str) -> socket.socket:
    """A client that asks for a stream and reads nothing of it."""
    sock = _socket(base_url, receive=4096)
    body = b'{"model":"policy","messages":[{"role":"user","content":"much"}],"stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return sock


def _half_open(base_url: str) -> socket.socket:
    sock = _socket(base_url)
    sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Le")
    return sock


def _socket(base_url: str, receive: int | None = None) -> socket.socket:
    url = urlsplit(base_url)
    sock = socket.socket()
    if receive is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    sock.connect((url.hostname, url.port))
    return sock
