"""The control plane's routes for sessions, where sessions live in workers: each question goes to the session's.

Owns where it goes, and how answers of several workers become one; what is asked and answered is theirs, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp import web

from forge.proxy.control.server import read, waited
from forge.proxy.control.wire import reply
from forge.proxy.door.keys import SESSION_ID, Keys
from forge.proxy.sessions.spec import SessionSpec
from forge.proxy.workers.crew import Crew
from forge.proxy.workers.folder import control_path
from forge.proxy.workers.home import Homes
from forge.storage.errors import BadInput, Unavailable

AGAIN_S: Final = 0.05
WAIT_S: Final = 60.0
"""For a worker that is starting again."""
NO_CURSOR: Final = "0:"
"""Before the first session of a worker."""
ASKED: Final = ("Accept", "Content-Type", "Idempotency-Key")
ANSWERED: Final = ("Content-Type", "X-Forge-Session")
"""Headers that pass."""


class _Refused(msgspec.Struct):
    error: dict[str, str]


class _Finished(msgspec.Struct):
    sessions: list[dict[str, Any]]
    cursor: str


class Workers:
    """HTTP to the workers' own control planes."""

    def __init__(self, folder: Path, token: str) -> None:
        self._folder = folder
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http: dict[int, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for http in self._http.values():
            await http.close()

    async def send(
        self,
        number: int,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        once: bool = False,
    ) -> aiohttp.ClientResponse:
        """Its answer, whose body is still coming. ``once``: it would do more the second time, so what may have come
        there is not sent again. Raises ``Unavailable``."""
        loop = asyncio.get_running_loop()
        until = loop.time() + WAIT_S
        while True:
            try:
                return await self._session(number).request(
                    method, f"http://localhost{path}", data=body, headers=headers
                )
            except aiohttp.ClientError as error:
                came = not isinstance(error, aiohttp.ClientConnectorError)
                if loop.time() >= until or (once and came):
                    raise _gone(number) from error
            await asyncio.sleep(AGAIN_S)

    async def ask(self, number: int, path: str) -> bytes:
        """The body of its answer. Raises ``Unavailable``, and ``BadInput`` where it refuses."""
        async with await self.send(number, "GET", path) as answer:
            try:
                body = await answer.read()
            except aiohttp.ClientError as error:
                raise _gone(number) from error
        if answer.status >= 400:
            said = msgspec.json.decode(body, type=_Refused).error
            raise BadInput(said.get("message", ""), said.get("hint", ""))
        return body

    def _session(self, number: int) -> aiohttp.ClientSession:
        if number not in self._http:
            self._http[number] = aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(str(control_path(self._folder, number)), limit=0),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(),  # who asks the parent has limits of their own
                auto_decompress=False,
            )
        return self._http[number]


def _gone(number: int) -> Unavailable:
    return Unavailable(f"worker {number} ended, and is starting again", "ask again")


class SessionRoutes:
    def __init__(self, http: Workers, crew: Crew, homes: Homes, keys: Keys) -> None:
        self._http = http
        self._crew = crew
        self._homes = homes
        self._keys = keys
        self._turn = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/sessions", self._open),
            web.route("*", "/sessions/{id}", self._session),
            web.route("*", "/sessions/{id}/{what}", self._session),
            web.get("/media/{sha256:[0-9a-f]{64}}", self._any),
            web.get("/finished", self._finished),
            web.get("/capacity", self._capacity),
        ]

    async def _open(self, request: web.Request) -> web.StreamResponse:
        """At the home that its idempotency key gives it, else at each in turn."""
        key = request.headers.get("Idempotency-Key") or (await read(request, SessionSpec)).idempotency_key
        if key:  # so that it opens one session, however often it comes
            return await self._forward(request, self._homes.of(self._keys.session_id_for(key)))
        up = [worker.number for worker in self._crew.workers if worker.up] or [0]
        self._turn += 1
        return await self._forward(request, up[self._turn % len(up)], once=True)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        session_id = request.match_info["id"]
        if not SESSION_ID.fullmatch(session_id):
            raise web.HTTPNotFound(text=f"no session {session_id[:64]!r} here")
        return await self._forward(request, self._homes.of(session_id))

    async def _any(self, request: web.Request) -> web.StreamResponse:
        return await self._forward(request, 0)

    async def _forward(self, request: web.Request, number: int, *, once: bool = False) -> web.StreamResponse:
        asked = {name: request.headers[name] for name in ASKED if name in request.headers}
        body = await request.read()
        sent = await self._http.send(number, request.method, request.raw_path, body, asked, once=once)
        async with sent as answer:
            headers = {name: answer.headers[name] for name in ANSWERED if name in answer.headers}
            response = web.StreamResponse(status=answer.status, headers=headers)
            response.content_length = answer.content_length
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
        return response

    async def _finished(self, request: web.Request) -> web.Response:
        """A cursor is one of each worker, in order."""
        given = [each for each in request.query.get("cursor", "").split(",") if each] or [""]
        cursors = [given[number] if number < len(given) else "" for number in range(self._homes.count)]
        wait_s = waited(request)
        found = await asyncio.gather(*(self._news(number, cursor, 0.0) for number, cursor in enumerate(cursors)))
        if not any(each.sessions for each in found) and wait_s:
            found = await self._first_news(cursors, wait_s)
        sessions = [session for each in found for session in each.sessions]
        sessions.sort(key=lambda session: session["close_us"] or 0)
        return reply({"sessions": sessions, "cursor": ",".join(each.cursor or NO_CURSOR for each in found)})

    async def _first_news(self, cursors: list[str], wait_s: float) -> list[_Finished]:
        """As soon as one worker has some."""
        asked = [asyncio.ensure_future(self._news(number, cursor, wait_s)) for number, cursor in enumerate(cursors)]
        try:
            for answer in asyncio.as_completed(asked):
                if (await answer).sessions:
                    break
            return [
                each.result() if each.done() else _Finished([], cursor)
                for each, cursor in zip(asked, cursors, strict=True)
            ]
        finally:
            for each in asked:
                each.cancel()

    async def _news(self, number: int, cursor: str, wait_s: float) -> _Finished:
        """What a worker has to say that is starting again, it says when it is asked the next time."""
        try:
            body = await self._http.ask(number, f"/finished?cursor={quote(cursor)}&wait={wait_s}")
        except Unavailable:
            return _Finished([], cursor)
        return msgspec.json.decode(body, type=_Finished)

    async def _capacity(self, request: web.Request) -> web.Response:
        """Each worker has its own room; they share none."""
        total: Counter[str] = Counter()
        for worker in self._crew.workers:
            total.update(msgspec.json.decode(await self._http.ask(worker.number, "/capacity"), type=dict[str, int]))
        return reply(dict(total))
