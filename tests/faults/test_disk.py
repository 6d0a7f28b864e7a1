"""R4: the disk fills under load and under the decoder, and is freed: 503 meanwhile, nothing lost, no restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.engine import ScriptedEngine, Turn
from tests.faults.ledger import Ledger, compare
from tests.faults.load import ARGUMENTS, client
from tests.proxy.process import proxy_process
from tests.storage.conftest import small_disk as small_disk

pytestmark = pytest.mark.process

DISK_MB = 4


async def test_a_full_disk_is_said_and_everything_goes_on_when_there_is_room(
    tmp_path: Path, small_disk: Callable[[int], Path]
) -> None:
    disk, ledger = small_disk(DISK_MB), Ledger()
    ballast = disk / "ballast"
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        engine.default = lambda request: Turn("word " * 20, tool_calls=[("run", ARGUMENTS)])
        async with proxy_process(disk / "data", engine.url, beside=tmp_path) as proxy:
            await asyncio.gather(*(client(proxy.base_url, n, ledger, limit=4) for n in range(4)))
            body = {"model": "policy", "messages": [{"role": "user", "content": "x" * 20_000}]}
            url = f"{proxy.base_url}/chat/completions"
            _fill(ballast)
            async with asyncio.timeout(60):
                while True:
                    async with http.post(url, json=body) as answer:
                        got = await answer.read()
                        if answer.status == 503:
                            assert (await answer.json())["error"]["code"] == "recorder_unavailable"
                            break
                        ledger.note_whole(answer.headers["X-Forge-Call-Id"], "chat", got)
            ballast.unlink()
            async with asyncio.timeout(60):
                while True:
                    async with http.post(url, json=body) as answer:
                        got = await answer.read()
                        if answer.status == 200:
                            ledger.note_whole(answer.headers["X-Forge-Call-Id"], "chat", got)
                            break
            await asyncio.gather(*(client(proxy.base_url, n, ledger, limit=4) for n in range(4, 8)))
            assert await proxy.stop() == 0, proxy.log.read_text()
        compare(ledger, engine.served, disk / "data", cut=("interrupted", "error"))


def _fill(path: Path) -> None:
    """Every byte that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while True:
                    file.write(b"b" * size)
            except OSError:
                continue
