"""The way back to one client: a head, then a body of known length or in chunks, then its end, each written once.

Owns the bytes of HTTP/1.1 on a call's answer; what they say is the call's. The HTTP server below reads requests and
keeps connections, and is told at the end that the answer is out: its own responses copy and re-frame every piece. The
one non-obvious fact: a write only queues; the event loop sends what one round has queued in one system call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

QUEUED_BYTES: Final = 64 << 10
"""Unsent bytes above which the client has to take some first: the transport's own mark."""
REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


class Gone(Exception):
    """The client is gone, or takes nothing any more."""


class Written(web.StreamResponse):
    """Tells the HTTP server that the answer is out, and whether its connection goes on."""

    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self._kept = kept

    @property
    def keep_alive(self) -> bool:
        return self._kept

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """There is nothing left to write."""


KEPT: Final = Written(kept=True)
ENDED: Final = Written(kept=False)


class Outlet:
    """Of one answer. Raises ``Gone`` whenever the client is."""

    def __init__(self, request: web.BaseRequest, write_s: float) -> None:
        self._request = request
        self._write_s = write_s
        self._chunked = False
        self.begun = False

    def begin(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """The head. ``length`` of the body; None: it is not known yet."""
        request = self._request
        if request.transport is None:
            raise Gone
        self._transport = request.transport
        request.writer.output_size += 1  # an answer has begun: no other may
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, '')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if length is not None:
            lines.append(f"Content-Length: {length}")
        elif request.version >= HttpVersion11:
            self._chunked = True
            lines.append("Transfer-Encoding: chunked")
        self._kept = bool(request.keep_alive) and (self._chunked or length is not None)
        if not self._kept:
            lines.append("Connection: close")
        elif request.version < HttpVersion11:
            lines.append("Connection: keep-alive")
        self.begun = True
        self._write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    def write(self, data: bytes) -> bool:
        """A piece of the body. True: too much is unsent, and ``taken`` must be awaited before the next one."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return self._transport.get_write_buffer_size() > QUEUED_BYTES

    async def end(self, data: bytes) -> web.StreamResponse:
        """The last of the body, and its end."""
        if self._chunked:
            data = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n"
        if data:
            self._write(data)
            await self.taken()
        return KEPT if self._kept else ENDED

    def cut(self) -> web.StreamResponse:
        """The connection breaks off: no end of the body comes."""
        if self._request.transport is not None:
            self._request.transport.close()
        return ENDED

    def _write(self, data: bytes) -> None:
        if self._request.transport is None or self._transport.is_closing():
            raise Gone
        self._transport.write(data)

    async def taken(self) -> None:
        """Waits while too much is unsent."""
        if self._transport.get_write_buffer_size() <= QUEUED_BYTES:
            return
        try:
            async with asyncio.timeout(self._write_s):
                await self._request.writer.drain()
        except (ConnectionError, TimeoutError) as error:
            raise Gone from error
