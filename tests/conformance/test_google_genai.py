"""Google's own SDK through the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google import genai
from google.genai import types

from tests.engine import Turn
from tests.proxy.serving import Serving, calls, serving

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")
MODEL = "stub-model"


@asynccontextmanager
async def sdk(s: Serving) -> AsyncIterator[genai.Client]:
    ticket = await s.control.open_session()
    base = ticket.base_url.removesuffix("/v1")
    client = genai.Client(api_key=ticket.api_key, http_options=types.HttpOptions(base_url=base))
    try:
        yield client
    finally:
        await client.aio.aclose()
        client.close()


async def test_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Hello there"))
        answer = await client.aio.models.generate_content(model=MODEL, contents="hi")
        assert answer.text == "Hello there"
    (row,) = calls(s.data)
    assert (row.dialect, row.trainable, row.model_requested) == ("gemini", True, MODEL)


async def test_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Hello there"))
        chunks = [c async for c in await client.aio.models.generate_content_stream(model=MODEL, contents="hi")]
        assert "".join(c.text or "" for c in chunks) == "Hello there"
