"""R16: bodies and answers as large as they may be, and many of them at once: the proxy's memory has a bound."""

from __future__ import annotations

import asyncio
import io
import shutil
from pathlib import Path

import aiohttp
import pytest

from tests.engine import ScriptedEngine, Turn
from tests.faults.memory import peak_mb
from tests.faults.soak import SOAK
from tests.proxy.process import proxy_process

pytestmark = pytest.mark.process

MEMORY_MB = 1500
CAP = 64 << 20
SIDE_BY_SIDE = 100
BODY = 5 << 20
TOKENS = 200_000


def body_of(size: int) -> bytes:
    """A request of just so many bytes."""
    head, tail = b'{"model":"policy","messages":[{"role":"user","content":"', b'"}]}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.timeout(900)
async def test_large_bodies_and_answers_side_by_side_stay_within_memory(tmp_path: Path) -> None:
    """And one byte above the cap is 413."""
    data = tmp_path / "data"
    headers = {"Content-Type": "application/json"}
    async with (
        ScriptedEngine(max_model_len=1 << 30) as engine,
        proxy_process(data, engine.url) as proxy,
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        url = f"{proxy.base_url}/chat/completions"

        async def post(body: bytes) -> int:
            async with http.post(url, data=io.BytesIO(body)) as answer:
                while await answer.content.readany():
                    pass
                return answer.status

        assert await post(body_of(CAP)) == 200
        assert await post(body_of(CAP + 1)) == 413
        engine.served.clear()
        assert set(await asyncio.gather(*(post(body_of(BODY)) for _ in range(SIDE_BY_SIDE)))) == {200}
        engine.served.clear()
        engine.script(*[Turn("w " * (TOKENS // 2))] * 2)
        assert await post(body_of(100)) == 200
        if SOAK:  # its engine takes a minute to say it
            assert await post(body_of(100)[:-1] + b',"stream":true}') == 200
        peak = peak_mb(proxy.process.pid)
        assert await proxy.stop() == 0, proxy.log.read_text()
    shutil.rmtree(data)
    print(f"peak {peak:.0f} MB")
    assert peak < MEMORY_MB
