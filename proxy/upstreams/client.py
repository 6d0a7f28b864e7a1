"""HTTP to the policy servers, seen as narrowly as the call path needs it: a request out, a status and chunks back.

What matters to the caller is whether the engine can have begun (``NotBegun`` says it cannot), so that a generation
is never sampled twice. Redirects are not followed, bodies are not decompressed, connections are not limited.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import msgspec

from forge.proxy.redaction import redact
from forge.storage.errors import BadInput

IDLE_S: Final = 3.0
"""An idle connection is dropped before uvicorn's 5 s would close it under a request of ours."""
READ_BYTES: Final = 1 << 16
LARGE_BYTES: Final = 256 << 10
"""A longer request goes out piece by piece: in one piece it would hold up every other call."""
JSON_BYTES: Final = 16 << 20
"""Longest answer of a probe or publication that is looked at."""


class NotBegun(Exception):
    """The engine cannot have seen the request: it may be sent again."""


class BrokeOff(Exception):
    """The exchange failed after the engine may have begun."""


class Silent(BrokeOff):
    """We gave up waiting for it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's answer whose body is still coming. ``close`` frees the connection; the engine then stops."""

    status: int
    content_type: str
    """Without parameters, lower case."""
    headers: Mapping[str, str]
    _response: aiohttp.ClientResponse
    said: bytes | None = None
    """The whole body, where it was looked at already."""

    async def chunk(self) -> bytes:
        """The next body bytes as they came; empty at the end. Safe to cancel."""
        try:
            return await self._response.content.readany()
        except TimeoutError as error:
            raise Silent(_why(error)) from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise BrokeOff(_why(error)) from error

    async def body(self, limit: int) -> bytes:
        """The whole body, cut at ``limit`` bytes; what came before a break-off."""
        if self.said is not None:
            return self.said
        got = bytearray()
        with suppress(BrokeOff):
            while len(got) < limit and (chunk := await self.chunk()):
                got += chunk
        return bytes(got[:limit])

    def close(self) -> None:
        """Frees the connection: for the next call if the body was read to its end, else the engine sees it close."""
        self._response.close()


class EngineClient:
    """One pool of connections to all policy servers."""

    def __init__(self, *, key: str | None, connect_s: float, silence_s: float) -> None:
        self._key = key.encode() if key is not None else None
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "forge"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_s, sock_read=silence_s)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S),
            auto_decompress=False,
            headers=self._headers,
            timeout=self._timeout,
            read_bufsize=READ_BYTES,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(
        self, method: str, url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """Returns when the engine's status and headers are there. Raises ``NotBegun`` or ``BrokeOff``."""
        assert self._session is not None
        extra = {"Content-Type": "application/json", **(headers or {})} if body is not None else headers
        try:
            response = await self._session.request(method, url, data=_data(body), headers=extra, allow_redirects=False)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise NotBegun(_why(error)) from error
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise BrokeOff(_why(error)) from error
        kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        return Reply(response.status, kind, response.headers, response)

    def redact(self, text: bytes) -> bytes:
        """Without our key, which some servers quote in their errors, and without what else looks like one."""
        return redact(text.replace(self._key, b"[redacted]") if self._key is not None else text)

    async def json(self, method: str, url: str, payload: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """For probes and publications: the status and the decoded body (None where it is not JSON)."""
        body = msgspec.json.encode(payload) if payload is not None else None
        reply = await self.send(method, url, body)
        try:
            text = await reply.body(JSON_BYTES)
        finally:
            reply.close()
        try:
            return reply.status, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return reply.status, None


def _data(body: bytes | None) -> bytes | io.BytesIO | None:
    return io.BytesIO(body) if body is not None and len(body) > LARGE_BYTES else body


def _why(error: BaseException) -> str:
    return str(error) or type(error).__name__


def read_key(path: Path | None) -> str | None:
    """The upstream's key: the file's only line."""
    if path is None:
        return None
    try:
        key = path.read_text().strip()
    except OSError as error:
        raise BadInput(f"cannot read the upstream key file {path}: {error.strerror}", "check its path") from error
    if not key or not key.isprintable() or " " in key:
        raise BadInput(f"the upstream key file {path} must hold the key and nothing else", "write one line into it")
    return key
