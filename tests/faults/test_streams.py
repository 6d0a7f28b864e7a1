"""R6: hundreds of streams at once. No error, no stream left behind, memory flat, each chunk soon through the proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import pytest

from forge.storage.dataset import Dataset
from tests.engine import Fault, Gate, ScriptedEngine, Turn
from tests.faults.memory import peak_mb, rss_mb
from tests.faults.soak import LONG, rounds
from tests.proxy.process import proxy_process

pytestmark = pytest.mark.process

STREAMS = rounds(200, 500)
STEPS = 1200
"""Chunks of each stream: a minute of 20 a second."""
WORD = "w" * 400
"""Of a chunk: what waits of a stream in the proxy's memory is written a few times before half of the steps are made."""
DIRECT = 12
"""Every so many steps the same number of streams without a proxy makes one too."""
MEMORY_MB = 600
SLOWER = 8.0
"""A step through the proxy takes less than so many times of one without: the engine, the clients and the proxy share
the cores, and a chunk goes through three processes' work instead of two."""


def pieces() -> tuple[bytes, ...]:
    """An answer of single tokens with their ids and log probs, as an engine that was asked for them streams it."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}

    def event(delta: dict[str, Any], finish: str | None, ids: list[int], **more: Any) -> bytes:
        token = delta.get("content", "w")
        content = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in ids]
        choice = {"index": 0, "delta": delta, "logprobs": {"content": content}, "finish_reason": finish}
        members = head | {"choices": [choice | {"token_ids": ids}]} | more
        return b"data: " + json.dumps(members).encode() + b"\n\n"

    first = event({"role": "assistant", "content": ""}, None, [], prompt_token_ids=[1, 2, 3])
    words = (event({"content": WORD}, None, [number]) for number in range(STEPS))
    usage = {"prompt_tokens": 3, "completion_tokens": STEPS + 1, "total_tokens": STEPS + 4}
    last = b"data: " + json.dumps(head | {"choices": [], "usage": usage}).encode() + b"\n\n"
    return (first, *words, event({}, "stop", [STEPS]), last, b"data: [DONE]\n\n")


class Streams:
    """Clients that read side by side."""

    def __init__(self, count: int, gate: Gate) -> None:
        self._gate = gate
        self._seen = [0] * count
        self._behind = 0
        self._step = 0
        self._all = asyncio.Event()
        self.whole = 0

    async def read(self, number: int, answer: aiohttp.ClientResponse) -> None:
        end = b""
        async for piece in answer.content.iter_any():
            before, self._seen[number] = self._seen[number], self._seen[number] + piece.count(b'"delta"')
            if before < self._step <= self._seen[number]:
                self._behind -= 1
                if not self._behind:
                    self._all.set()
            end = (end + piece)[-20:]
        self.whole += end.endswith(b"[DONE]\n\n")

    async def step(self) -> float:
        """Every stream gets its next chunk; gives the seconds until the last one has it."""
        self._step += 1
        self._behind = sum(seen < self._step for seen in self._seen)
        self._all.clear()
        began = time.perf_counter()
        self._gate.release(len(self._seen))
        if self._behind:
            async with asyncio.timeout(60):
                await self._all.wait()
        return time.perf_counter() - began


@asynccontextmanager
async def streaming(engine: ScriptedEngine, url: str, count: int) -> AsyncIterator[tuple[Streams, Gate]]:
    """So many streams of one chunk each; all that is left comes when the gate opens, and is read to the end."""
    gate = Gate(is_open=False)
    streams, whole = Streams(count, gate), pieces()
    engine.default = lambda request: Turn(fault=Fault(raw=whole), gate=gate)
    body = {"model": "policy", "messages": [{"role": "user", "content": "hi"}], "stream": True, "logprobs": True}
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as readers:
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None))
        )
        answers = await asyncio.gather(*(http.post(f"{url}/chat/completions", json=body) for _ in range(count)))
        assert {answer.status for answer in answers} == {200}
        for number, answer in enumerate(answers):
            readers.create_task(streams.read(number, answer))
        await streams.step()
        yield streams, gate


@pytest.mark.timeout(LONG)
async def test_hundreds_of_streams_go_on_side_by_side(tmp_path: Path) -> None:
    taken: list[float] = []
    direct: list[float] = []
    async with ScriptedEngine() as engine, proxy_process(tmp_path / "data", engine.url) as proxy:
        pid = proxy.process.pid
        async with (
            streaming(engine, f"{engine.url}/v1", STREAMS) as (bare, bare_gate),
            streaming(engine, proxy.base_url, STREAMS) as (streams, gate),
        ):
            for step in range(STEPS):
                taken.append(await streams.step())
                if step % DIRECT == 0:
                    direct.append(await bare.step())
                if step == STEPS // 2:
                    early = rss_mb(pid)
            late = rss_mb(pid)
            gate.open()
            bare_gate.open()
        peak = peak_mb(pid)
        assert await proxy.stop() == 0, proxy.log.read_text()
    assert streams.whole == STREAMS
    rows = list(Dataset(tmp_path / "data").calls())
    assert len(rows) == STREAMS
    assert {(row.status, row.trainable, len(row.output_ids)) for row in rows} == {("ok", True, STEPS + 1)}
    ratio = median(taken) / median(direct)
    worst = sorted(taken)[int(len(taken) * 0.99)]
    print(f"{STREAMS} streams, {STREAMS * STEPS} chunks; a step: median {median(taken) * 1e3:.1f} ms, p99", end=" ")
    print(f"{worst * 1e3:.1f} ms, {ratio:.2f} of one without a proxy; MB: {early:.0f}, {late:.0f}, peak {peak:.0f}")
    assert ratio < SLOWER
    assert peak < MEMORY_MB
    assert late < early * 1.05 + 10, "memory grows with the chunks"
