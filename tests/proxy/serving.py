"""A scripted engine behind a real proxy in this process, and what a test reads back of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from forge.client import ControlClient
from forge.proxy.app import Running, serve
from forge.proxy.config import Limits, ProxyConfig, Record
from forge.proxy.recording.assembly import Assembly
from forge.proxy.recording.decode import decode_call
from forge.storage.frames import AnyFrame, Close, Cut, Open
from forge.storage.journal import Entry, JournalReader, journal_dir
from forge.storage.records import Call
from tests.engine import ScriptedEngine

QUICK = Limits(backoff_s=0.01, health_s=0.02, start_s=5.0, end_s=1.0, drain_s=5.0, decoder_s=20.0, hold_s=10.0)
USER = {"role": "user", "content": "hello"}
WAIT_S = 10.0
"""Bound of every wait in these tests."""


@dataclass
class Serving:
    engine: ScriptedEngine
    proxy: Running
    http: aiohttp.ClientSession
    control: ControlClient
    data: Path

    def chat(
        self,
        messages: Sequence[dict[str, Any]] = (USER,),
        *,
        base: str | None = None,
        key: str | None = None,
        **members: Any,
    ) -> Any:
        """A request context: ``async with serving.chat(stream=True) as answer``."""
        body = {"model": "policy", "messages": list(messages)} | members
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        return self.http.post((base or self.proxy.base_url) + "/chat/completions", json=body, headers=headers)

    def entries(self) -> list[Entry]:
        return entries(self.data)

    def frames(self, kind: type[AnyFrame] | None = None) -> list[Any]:
        return [e.frame for e in self.entries() if kind is None or isinstance(e.frame, kind)]

    async def closed(self, count: int = 1) -> list[Close]:
        """The ``close`` frames, once there are ``count``."""
        async with asyncio.timeout(WAIT_S):
            while len(found := self.frames(Close)) < count:
                await asyncio.sleep(0.005)
        return found

    async def opened(self, count: int = 1) -> list[Open]:
        async with asyncio.timeout(WAIT_S):
            while len(found := self.frames(Open)) < count:
                await asyncio.sleep(0.005)
        return found


def entries(data: Path, writer: int = 0) -> list[Entry]:
    reader = JournalReader(journal_dir(data, writer))
    found: list[Entry] = []
    try:
        while more := reader.read():
            found += more
    finally:
        reader.close()
    return found


def calls(data: Path) -> list[Call]:
    """The rows that the journal's frames make, without their places in the tree."""
    assembly, found = Assembly(0), entries(data)
    end = found[-1]
    found.append(Entry(end.end, end.end, Cut(number=0, wall_us=0), b""))
    bounds = [bound for entry in found if (bound := assembly.feed(entry)) is not None]
    rows = [
        row
        for bound in bounds
        for call in bound.calls
        for row in decode_call(call.open, call.request, call.sent, call.answer, call.close)
    ]
    return sorted(rows, key=lambda row: row.seq)


@asynccontextmanager
async def serving(
    tmp: Path, there: ScriptedEngine | None = None, *, probed: bool = False, limits: Limits = QUICK, **options: Any
) -> AsyncIterator[Serving]:
    """``probed``: keep what the probe asked in ``engine.served``."""
    options = {"upstreams": None, "decoder": False, "record": Record.STRICT} | options
    async with there or ScriptedEngine() as there:
        upstreams = options.pop("upstreams")
        config = ProxyConfig(
            data=tmp / "data",
            run_id=options.pop("run_id", "run"),
            upstreams=(there.url,) if upstreams is None else tuple(upstreams),
            port=0,
            control_port=0,
            limits=limits,
            **options,
        )
        async with (
            serve(config) as proxy,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as http,
            ControlClient(proxy.control_url, proxy.control_token) as control,
        ):
            if not probed:
                there.served.clear()
            yield Serving(there, proxy, http, control, config.data)


def events(body: bytes | str) -> list[dict[str, Any]]:
    """The JSON events of an SSE body."""
    text = body.decode() if isinstance(body, bytes) else body
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]
