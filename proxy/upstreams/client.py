"""HTTP to the policy servers, seen as narrowly as the call path needs it: a request out, a status and chunks back.

What matters to the caller is whether the engine can have begun (``NotBegun`` says it cannot), so that a generation
is never sampled twice: a request goes out once, on a connection on which nothing has come, and is never sent again
here. Redirects are not followed, bodies are not decompressed, idle connections are kept for a short while.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import msgspec

from forge.proxy.config import UNIX
from forge.proxy.redaction import redact
from forge.proxy.upstreams.connection import BrokeOff, Connection, Silent, Sink
from forge.storage.errors import BadInput

__all__ = ["BrokeOff", "EngineClient", "NotBegun", "Reply", "Silent", "read_key"]

IDLE_S: Final = 3.0
"""An idle connection is dropped before uvicorn's 5 s would close it under a request of ours."""
IDLE_MAX: Final = 1024
"""Idle connections kept for one server; as many as calls run stay busy anyway."""
LATE_S: Final = 0.5
"""By so much a timer rings late only where the loop was held up."""
JSON_BYTES: Final = 16 << 20
"""Longest answer of a probe or publication that is looked at."""
PORTS: Final = {"http": 80, "https": 443}
URLS: Final = 1024
HEADS: Final = 64
"""Beginnings of requests that are remembered for one server."""


Pieces = Sequence[bytes | memoryview]
"""Of one body, in order."""


class NotBegun(Exception):
    """The engine cannot have seen the request: it may be sent again."""


class Origin(NamedTuple):
    """Where a server listens."""

    scheme: str
    host: str
    """For a unix socket, its path."""
    port: int

    def host_header(self) -> str:
        if self.scheme == UNIX:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(slots=True)
class Reply:
    """An engine's answer whose body is still coming. ``close`` frees the connection; the engine then stops."""

    status: int
    content_type: str
    """Without parameters, lower case."""
    headers: Mapping[str, str]
    """Names in lower case."""
    _connection: Connection
    _client: EngineClient
    _origin: Origin
    said: bytes | None = None
    """The whole body, where it was looked at already."""

    def take(
        self, wait_s: float | None = None, least: int = 1, sink: Sink | None = None
    ) -> Coroutine[Any, Any, list[bytes] | None]:
        """The next body bytes as they came, ``least`` of them if there are so many; empty at the end, None if they did
        not come within ``wait_s`` or at ``nudge``. ``sink`` gets first what comes meanwhile. Raises ``BrokeOff``, and
        what the sink raises. Safe to cancel."""
        return self._connection.take(wait_s, least, sink)

    def nudge(self) -> None:
        """Whoever waits in ``take`` should look at how long."""
        self._connection.nudge()

    async def body(self, limit: int) -> bytes:
        """The whole body, cut at ``limit`` bytes; what came before a break-off."""
        if self.said is not None:
            return self.said
        got = bytearray()
        with suppress(BrokeOff):
            while len(got) < limit and (chunks := await self.take()):
                got += b"".join(chunks)
        return bytes(got[:limit])

    def close(self) -> None:
        """Frees the connection: for the next call if the body was read to its end, else the engine sees it close."""
        self._client.give_back(self._origin, self._connection)


@dataclass(slots=True)
class _Pool:
    """The connections to one server."""

    idle: list[Connection] = field(default_factory=list)
    """The one used last is the last."""
    busy: set[Connection] = field(default_factory=set)
    heads: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """By method and path: what all requests begin with."""


class EngineClient:
    """The connections to all policy servers."""

    def __init__(self, *, key: str | None, connect_s: float, silence_s: float) -> None:
        self._key = key.encode() if key is not None else None
        self._connect_s = connect_s
        self._silence_s = silence_s
        self._pools: dict[Origin, _Pool] = {}
        self._tls: ssl.SSLContext | None = None
        self._sweep: asyncio.TimerHandle | None = None
        authorization = f"Authorization: Bearer {key}\r\n" if key is not None else ""
        self._fixed = f"Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: forge\r\n{authorization}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for pool in self._pools.values():
            for connection in (*pool.idle, *pool.busy):
                connection.drop()
        self._pools.clear()
        await asyncio.sleep(0)  # transports close in the loop's next round

    async def send(
        self, method: str, url: str, *body: bytes | memoryview, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """``body`` comes in pieces. Returns when the engine's status and headers are there. Raises ``NotBegun`` or
        ``BrokeOff``."""
        origin, path = _split(url)
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = _Pool()
        head = self._head(pool, method, origin, path, sum(map(len, body)) if body else None, headers)
        connection = self._idle(pool) or await self._connect(origin)
        pool.busy.add(connection)
        try:
            await connection.begin((head, *body))
        except BaseException:
            pool.busy.discard(connection)
            connection.drop()
            raise
        kind = connection.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Reply(connection.status, kind, connection.headers, connection, self, origin)

    def _head(
        self,
        pool: _Pool,
        method: str,
        origin: Origin,
        path: str,
        length: int | None,
        headers: Mapping[str, str] | None,
    ) -> bytes:
        head = pool.heads.get((method, path))
        if head is None:
            head = f"{method} {path} HTTP/1.1\r\nHost: {origin.host_header()}\r\n{self._fixed}".encode("latin-1")
            if len(pool.heads) < HEADS:
                pool.heads[method, path] = head
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1") if headers else b""
        if length is None:
            return b"%b%b\r\n" % (head, more)
        return b"%bContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n" % (head, length, more)

    def _idle(self, pool: _Pool) -> Connection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while pool.idle:
            connection = pool.idle.pop()
            if connection.idle_since >= oldest and connection.alive():
                return connection
            connection.drop()
        return None

    async def _connect(self, origin: Origin) -> Connection:
        """Raises ``NotBegun``."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(self._connect_s)
        try:
            async with limit:
                return await self._connected(loop, origin)
        except TimeoutError as error:
            if loop.time() - (limit.when() or 0.0) < LATE_S:
                raise NotBegun(f"no connection within {self._connect_s:g} s") from error
        except (OSError, UnicodeError) as error:
            raise NotBegun(str(error) or type(error).__name__) from error
        return await self._connect(origin)  # we were held up ourselves, and have not given the server its time

    async def _connected(self, loop: asyncio.AbstractEventLoop, origin: Origin) -> Connection:
        if origin.scheme == UNIX:
            return (await loop.create_unix_connection(self._make, origin.host))[1]
        tls = self._context() if origin.scheme == "https" else None
        return (await loop.create_connection(self._make, origin.host, origin.port, ssl=tls))[1]

    def _make(self) -> Connection:
        return Connection(self._silence_s)

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """The answer is read, or not wanted any more; twice is once."""
        pool = self._pools.get(origin)
        if pool is None or connection not in pool.busy:
            return
        pool.busy.discard(connection)
        if not connection.reusable or len(pool.idle) >= IDLE_MAX:
            connection.drop()
            return
        connection.rest()
        pool.idle.append(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._sweep_idle)

    def _sweep_idle(self) -> None:
        """Ends connections that nobody has used for a while."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - IDLE_S
        left = False
        for pool in self._pools.values():
            old = [connection for connection in pool.idle if connection.idle_since < oldest]
            pool.idle = pool.idle[len(old) :] if len(old) < len(pool.idle) else []
            left = left or bool(pool.idle)
            for connection in old:
                connection.drop()
        self._sweep = loop.call_later(IDLE_S, self._sweep_idle) if left else None

    def redact(self, text: bytes) -> bytes:
        """Without our key, which some servers quote in their errors, and without what else looks like one."""
        return redact(text.replace(self._key, b"[redacted]") if self._key is not None else text)

    async def json(self, method: str, url: str, payload: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """For probes and publications: the status and the decoded body (None where it is not JSON)."""
        body = (msgspec.json.encode(payload),) if payload is not None else ()
        reply = await self.send(method, url, *body)
        try:
            text = await reply.body(JSON_BYTES)
        finally:
            reply.close()
        try:
            return reply.status, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return reply.status, None


@lru_cache(maxsize=URLS)
def _split(url: str) -> tuple[Origin, str]:
    """Raises ``NotBegun`` on what is no URL of a server."""
    try:
        parts = urlsplit(url)
        host = unquote(parts.hostname or "") if parts.scheme != UNIX else unquote(parts.netloc)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise NotBegun(f"not a URL: {error}") from error
    if not host or (parts.scheme not in PORTS and parts.scheme != UNIX) or not url.isascii() or not url.isprintable():
        raise NotBegun("not a URL of a server")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.scheme, host, port), path.replace(" ", "%20")


def read_key(path: Path | None) -> str | None:
    """The upstream's key: the file's only line."""
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise BadInput(f"cannot read the upstream key file {path}: {error.strerror}", "check its path") from error
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"the upstream key file {path} must hold the key and nothing else", "write one line into it")
    return key
