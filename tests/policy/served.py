"""A policy server under test: real HTTP on a free port, a tiny random model, the real tokenizer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from forge.policy.options import Options
from forge.policy.server import PolicyServer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Served:
    server: PolicyServer
    base: str
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Json | None = None) -> tuple[int, Json]:
        async with self.http.post(self.base + path, json=body) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> Json:
        async with self.http.get(self.base + path) as answer:
            found: Json = await answer.json()
            return found

    async def ask(self, prompt: list[int] | str, **fields: Any) -> Json:
        """One completion with ids and log probs; its choice, with the usage in it."""
        asked = {"prompt": prompt, "logprobs": 0, "return_token_ids": True} | fields
        status, body = await self.post("/v1/completions", asked)
        assert status == 200, body
        choice: Json = body["choices"][0]
        return choice | {"usage": body["usage"]}

    async def events(self, path: str, body: Json) -> AsyncIterator[Json]:
        async with self.http.post(self.base + path, json=body | {"stream": True}) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    yield json.loads(line[6:])


@asynccontextmanager
async def serving(directory: Path, **fields: Any) -> AsyncIterator[Served]:
    server = PolicyServer(Options(directory, "policy", **fields))
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as http:
            yield Served(server, f"http://127.0.0.1:{port}", http)
    finally:
        await runner.cleanup()
        server.close()
