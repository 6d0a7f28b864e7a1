"""The routes that only the owner of the weights calls: pause, reload, version, resume.

The order of a publication is pause, reload_weights, update_weight_version, resume. Not obvious: weights change only
while paused, so no id is ever drawn from new weights under the old version's name.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any, get_args

from aiohttp import web

from forge.policy import protocol
from forge.policy.llama import Llama
from forge.policy.protocol import Refused
from forge.policy.scheduler import NotPaused, PauseMode, Scheduler
from forge.policy.weights import weight_digest
from forge.storage.errors import BadInput


class Admin:
    def __init__(self, scheduler: Scheduler, lineage: str) -> None:
        self._scheduler = scheduler
        self._lineage = lineage
        self._boot_id = uuid.uuid4().hex

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/pause", self.pause),
            web.post("/resume", self.resume),
            web.get("/is_paused", self.is_paused),
            web.post("/reload_weights", self.reload_weights),
            web.post("/reset_prefix_cache", self.reset_prefix_cache),
            web.post("/update_weight_version", self.update_weight_version),
            web.get("/weight_info", self.weight_info),
        ]

    async def pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in get_args(PauseMode):
            raise Refused(f"mode={mode!r} is not one of {', '.join(get_args(PauseMode))}", "mode")
        await asyncio.wrap_future(self._scheduler.pause(mode))  # type: ignore[arg-type]
        return web.json_response({"status": "paused"})

    async def resume(self, request: web.Request) -> web.Response:
        await asyncio.wrap_future(self._scheduler.resume())
        return web.json_response({"status": "resumed"})

    async def is_paused(self, request: web.Request) -> web.Response:
        return web.json_response({"is_paused": self._scheduler.paused})

    async def reload_weights(self, request: web.Request) -> web.Response:
        """Load a directory; on any failure the old weights stay."""
        path = Path(_field(await request.read(), "path"))
        if not self._scheduler.paused:
            raise Refused("the server is not paused: POST /pause first", status=409)
        if not path.is_absolute() or not path.is_dir():
            raise Refused(f"{path}: no such directory (the path must be absolute)", "path")
        llama, digest = await asyncio.to_thread(self._load, path)
        try:
            await asyncio.wrap_future(self._scheduler.replace(llama, digest))
        except NotPaused:
            raise Refused("the server was resumed, or is still finishing answers: pause it first", status=409) from None
        return web.json_response({"weight_digest": digest})

    def _load(self, path: Path) -> tuple[Llama, str]:
        llama = Llama(path)
        if llama.shape != self._scheduler.llama.shape:
            raise BadInput(
                f"{path}: not the architecture that is served: {llama.shape} is not {self._scheduler.llama.shape}"
            )
        return llama, weight_digest(path)

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        await asyncio.wrap_future(self._scheduler.order(self._scheduler.rows.clear))
        return web.json_response({})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        version = _field(await request.read(), "new_version")

        def act() -> None:
            self._scheduler.version = version

        await asyncio.wrap_future(self._scheduler.order(act))
        return await self.weight_info(request)

    async def weight_info(self, request: web.Request) -> web.Response:
        s = self._scheduler
        return web.json_response(
            {
                "weight_version": s.version,
                "weight_digest": s.digest,
                "weight_lineage": self._lineage,
                "boot_id": self._boot_id,
            }
        )


def _field(body: bytes, name: str) -> str:
    value = protocol.parse(body, dict[str, Any]).get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"the body must hold {name!r}, a string", name)
    return value
