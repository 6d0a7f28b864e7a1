"""The control plane's routes for policy servers: the pool, publications, pause and resume."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from forge.proxy.config import check_upstream
from forge.proxy.control.health import replica_brief
from forge.proxy.control.server import read
from forge.proxy.control.wire import reply
from forge.proxy.deps import Upstreams
from forge.proxy.tasks import Tasks
from forge.proxy.upstreams.plan import Publish
from forge.proxy.upstreams.pool import PAUSED, Replica, State
from forge.proxy.upstreams.publish import Publisher
from forge.proxy.upstreams.replicas import join
from forge.storage.errors import BadInput


class Upstream(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    wait: float = 30.0
    """Seconds that it may take to come up."""


class Removal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    drain: float = 0.0
    """Seconds that its running calls may still take; then it is removed all the same."""


class PoolRoutes:
    def __init__(self, deps: Upstreams, tasks: Tasks) -> None:
        self._deps = deps
        self._tasks = tasks
        self._publisher = Publisher(deps)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/upstreams", self._list),
            web.post("/upstreams", self._add),
            web.delete("/upstreams", self._remove),
            web.post("/upstreams/drain", self._drain),
            web.post("/policy/publish", self._publish),
            web.post("/pause", self._pause),
            web.post("/resume", self._resume),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        await self._deps.pool.known()
        return reply({"upstreams": [_told(replica) for replica in self._deps.pool.all()]})

    async def _add(self, request: web.Request) -> web.Response:
        """Probes the server and lets it serve. Adding it again while it drains lets it serve again."""
        spec = await read(request, Upstream)
        known = self._deps.pool.get(check_upstream(spec.url))
        if known is None:
            known = await join(self._deps, spec.url, start_s=spec.wait)
        elif known.state == State.DRAINING:
            known.state = State.UP
        await self._deps.pool.known()
        return reply(_told(known), 201)

    async def _drain(self, request: web.Request) -> web.Response:
        """No new calls; its sessions go to other servers."""
        replica = self._known((await read(request, Upstream)).url)
        replica.state, replica.reason = State.DRAINING, "drained by its owner"
        await self._deps.pool.known()
        return reply(_told(replica))

    async def _remove(self, request: web.Request) -> web.Response:
        spec = await read(request, Removal)
        replica = self._known(spec.url)
        replica.state, replica.reason = State.DRAINING, "removed by its owner"
        await self._deps.pool.known()
        try:
            async with asyncio.timeout(spec.drain):
                await self._deps.pool.quiet(replica)
        except TimeoutError:
            pass
        self._deps.pool.remove(replica.url)
        await self._deps.pool.known()
        return reply(_told(replica))

    async def _publish(self, request: web.Request) -> web.Response:
        spec = await read(request, Publish)
        # A publication runs to its end also when its client gives up waiting: half of one is no state.
        return reply(await self._tasks.finish(self._publisher.publish(spec)))

    async def _pause(self, request: web.Request) -> web.Response:
        """New calls wait until ``/resume``; running ones go on."""
        self._deps.pool.shut(PAUSED)
        await self._deps.pool.known()
        return reply({"paused": True})

    async def _resume(self, request: web.Request) -> web.Response:
        self._deps.pool.open(PAUSED)
        await self._deps.pool.known()
        return reply({"paused": False})

    def _known(self, url: str) -> Replica:
        replica = self._deps.pool.get(check_upstream(url))
        if replica is None:
            raise BadInput(f"no policy server {url} is in the pool", "see GET /upstreams")
        return replica


def _told(replica: Replica) -> dict[str, Any]:
    return replica_brief(replica) | {
        "policy_lineage": replica.policy.lineage,
        "weight_digest": replica.policy.digest,
        "adapter": replica.policy.adapter,
        "abilities": replica.abilities,
    }
