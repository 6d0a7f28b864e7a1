"""The control plane: what a trainer or a runner that owns its loop asks of the proxy. Its own port, its own token.

Sessions, rewards, what was recorded, and what is finished are here; the pool and publications in ``pool``, health in
``health``, who may ask in ``guard``. Nothing here can be reached through the data plane.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from forge.proxy.control.wire import ARROW, arrow, encode, reply
from forge.proxy.deps import Deps
from forge.proxy.recording.readback import calls_of
from forge.proxy.sessions.live import Live
from forge.proxy.sessions.spec import Outcome, Reward, Select, SessionSpec
from forge.proxy.splice import UNREADABLE
from forge.proxy.tasks import Tasks
from forge.storage.errors import BadInput, Unavailable
from forge.storage.journal import unpacked
from forge.storage.names import check_name
from forge.storage.records import Call
from forge.storage.samples import samples_of

T = TypeVar("T")

WAIT_MAX_S: Final = 60.0
FINISHED_MAX: Final = 1000


class ControlPlane:
    def __init__(self, deps: Deps, tasks: Tasks) -> None:
        self._deps = deps
        self._tasks = tasks

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/sessions", self._open),
            web.get("/sessions/{id}", self._session),
            web.post("/sessions/{id}/close", self._close),
            web.put("/sessions/{id}/reward", self._reward),
            web.put("/sessions/{id}/selection", self._selection),
            web.get("/sessions/{id}/calls", self._calls),
            web.get("/media/{sha256:[0-9a-f]{64}}", self._media),
            web.get("/finished", self._finished),
            web.get("/capacity", self._capacity),
        ]

    async def _open(self, request: web.Request) -> web.Response:
        spec = await read(request, SessionSpec)
        idempotency_key = request.headers.get("Idempotency-Key")
        if idempotency_key:
            spec = msgspec.structs.replace(spec, idempotency_key=idempotency_key)
        if spec.run_id is not None:
            check_name("the run_id", spec.run_id)
        if self._deps.draining:
            raise Unavailable("this proxy is stopping", "use another one")
        live = await self._deps.registry.open(spec, self._deps.policy())
        base = self._deps.base_url
        ticket = {
            "session_id": live.id,
            "base_url": f"{base}/s/{live.id}/v1",
            "api_key": self._deps.keys.make(live.id),
            "policy_version": live.record.policy_version,
        }
        return reply(ticket, 201)

    async def _session(self, request: web.Request) -> web.Response:
        live = await self._live(request)
        return reply({"session": live.record, "running": len(live.running), "calls": live.calls})

    async def _close(self, request: web.Request) -> web.Response:
        """Ends the session; answers with it and its samples, as JSON or, if asked for, as an Arrow stream."""
        outcome = await read(request, Outcome)
        if outcome.error is not None:  # a runner quotes what its harness printed
            clean = self._deps.client.redact(outcome.error.encode()).decode()
            outcome = msgspec.structs.replace(outcome, error=clean)
        live = await self._live(request)
        # It runs to its end also when its client gives up waiting: a session half closed takes no calls, for ever.
        session = await self._tasks.finish(self._deps.registry.close(live, outcome))
        calls = await self._read_back(live)
        samples = await asyncio.to_thread(samples_of, session, calls)
        if ARROW in request.headers.get("Accept", ""):
            headers = {"X-Forge-Session": encode(session).decode()}
            return web.Response(body=arrow(samples), content_type=ARROW, headers=headers)
        return reply({"session": session, "samples": samples, "calls": _summary(calls)})

    async def _reward(self, request: web.Request) -> web.Response:
        reward = await read(request, Reward)
        # Found last: what is read back gives way to others, and only the one in memory may be changed.
        live = await self._live(request)
        return reply({"session": self._deps.registry.reward(live, reward)})

    async def _selection(self, request: web.Request) -> web.Response:
        chosen = await read(request, Select)
        live = await self._live(request)
        return reply({"session": self._deps.registry.select(live, chosen.selection)})

    async def _calls(self, request: web.Request) -> web.Response:
        return reply({"calls": await self._read_back(await self._live(request))})

    async def _read_back(self, live: Live) -> list[Call]:
        deps = self._deps
        places = deps.recorder.positions.get(live.id)
        return await asyncio.to_thread(
            calls_of,
            deps.config.data,
            deps.recorder.journal.writer,
            live.record.run_id,
            live.id,
            None if places is None else [unpacked(place) for place in places],
            all_known=not live.restored,
        )

    async def _media(self, request: web.Request) -> web.Response:
        """What a sample's or a call's text refers to, for trainers that do not see the files."""
        name = request.match_info["sha256"]
        if not self._deps.media.path(name).exists():
            raise web.HTTPNotFound(text=f"no media {name} here")
        return web.Response(body=await asyncio.to_thread(self._deps.media.read, name))

    async def _finished(self, request: web.Request) -> web.Response:
        cursor = request.query.get("cursor", "")
        sessions, cursor = await self._deps.registry.finished(cursor, waited(request), FINISHED_MAX)
        return reply({"sessions": sessions, "cursor": cursor})

    async def _capacity(self, request: web.Request) -> web.Response:
        registry = self._deps.registry
        running = sum(len(live.running) for live in registry.open_ones())
        open_now = len(registry)
        return reply(
            {
                "sessions": registry.limit,
                "open": open_now,
                "free": 0 if registry.refuses else registry.limit - open_now,
                "calls": running,
            }
        )

    async def _live(self, request: web.Request) -> Live:
        live = await self._deps.registry.find(request.match_info["id"])
        if live is None:
            raise web.HTTPNotFound(text=f"no session {request.match_info['id'][:64]!r} here")
        return live


def waited(request: web.Request) -> float:
    """Seconds that a long poll may take."""
    try:
        return min(WAIT_MAX_S, max(0.0, float(request.query.get("wait", "0"))))
    except ValueError:
        raise BadInput("wait must be a number of seconds", "e.g. /finished?wait=30") from None


async def read(request: web.Request, kind: type[T]) -> T:
    """The JSON body as ``kind``; an empty body is an empty object."""
    try:
        return msgspec.json.decode(await request.read() or b"{}", type=kind)
    except UNREADABLE as failure:
        raise BadInput(
            f"the body of {request.method} {request.path}: {failure}", "send JSON with known fields"
        ) from failure


def _summary(calls: list[Call]) -> dict[str, Any]:
    """Counts that tell at a glance whether the session can train."""
    return {
        "calls": len({call.call_id for call in calls}),
        "statuses": dict(Counter(call.status for call in calls)),
        "untrainable": dict(Counter(call.untrainable_reason for call in calls if call.untrainable_reason)),
        "output_tokens": sum(len(call.output_ids) for call in calls),
    }
