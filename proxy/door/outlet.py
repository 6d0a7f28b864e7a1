"""The way back to one client: a head, then a body of known length or in chunks, then its end, each written once.

Owns the bytes of HTTP/1.1 on an answer; what they say is the caller's. The one non-obvious fact: each write is a
system call at once, the dearest thing on this way. So a head whose body is known waits for that, and a whole answer is
one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from forge.proxy.door.request import HTTP_11, Request

if TYPE_CHECKING:
    from forge.proxy.door.connection import Door

REASONS: Final = {status.value: status.phrase for status in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
JSON: Final = {"Content-Type": "application/json"}
BODILESS: Final = 204
LAST_CHUNK: Final = b"0\r\n\r\n"


class Gone(Exception):
    """The client is gone, or takes nothing any more."""


class Outlet:
    """Of one request's answer. Raises ``Gone`` whenever the client is."""

    __slots__ = ("_chunked", "_door", "_head", "_kept", "_request", "begun", "ended")

    def __init__(self, request: Request, door: Door) -> None:
        self._request = request
        self._door = door
        self._chunked = False
        self._kept = request.head.keep_alive
        self._head = b""
        """Not written yet."""
        self.begun = False
        self.ended = False

    @property
    def kept(self) -> bool:
        """The answer is out, and the connection may go on."""
        return self.ended and self._kept

    @property
    def full(self) -> bool:
        """Too much is unsent."""
        return self._door.full

    def answer(self, status: int, body: bytes = b"", headers: Mapping[str, str] = JSON, *, close: bool = False) -> None:
        """A short answer, all of it. ``close``: the connection ends with it."""
        self._kept = self._kept and not close
        self.begin(status, headers, len(body) if status != BODILESS else None)
        self._finish([body] if self._request.method != "HEAD" else [])

    def begin(self, status: int, headers: Mapping[str, str], length: int | None) -> None:
        """The head. ``length`` of the body; None: it is not known yet, or there is none."""
        modern = self._request.version >= HTTP_11
        end = b""
        if length is not None:
            end = b"Content-Length: %d\r\n" % length
        elif status != BODILESS and modern:
            self._chunked = True
            end = b"Transfer-Encoding: chunked\r\n"
        else:
            self._kept = self._kept and status == BODILESS
        if not self._kept:
            end += b"Connection: close\r\n"
        elif not modern:
            end += b"Connection: keep-alive\r\n"
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        self._head = b"%b%b%b\r\n" % (_status_line(status), fields.encode("latin-1"), end)
        self.begun = True
        if length is None:
            head, self._head = self._head, b""
            self._write(head)

    def write(self, data: bytes) -> bool:
        """A piece of a body whose length was not known. True: too much is unsent, and ``taken`` must be awaited before
        the next one."""
        transport = self._request.transport
        if transport.is_closing():
            raise Gone
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        return self._door.full

    async def end(self, pieces: Sequence[bytes]) -> None:
        """The last of the body, and its end."""
        self._finish(pieces)
        await self.taken()

    def cut(self) -> None:
        """The connection breaks off: no end of the body comes."""
        self._kept = False
        self._door.hang_up()

    def go_on(self) -> None:
        """Tells a client that waits for it to send its body."""
        if self._request.version >= HTTP_11:
            self._write(CONTINUE)

    async def taken(self) -> None:
        """Waits while too much is unsent."""
        if self._door.full and not await self._door.room():
            raise Gone

    def _finish(self, pieces: Sequence[bytes]) -> None:
        if self._chunked:
            data = b"".join(pieces)
            self._write(b"%x\r\n%b\r\n%b" % (len(data), data, LAST_CHUNK) if data else LAST_CHUNK)
        else:
            self._write(*pieces)
        self.ended = True

    def _write(self, *pieces: bytes) -> None:
        transport = self._request.transport
        if transport.is_closing():
            raise Gone
        if self._head:
            transport.writelines([self._head, *pieces])
            self._head = b""
        elif len(pieces) == 1:
            transport.write(pieces[0])
        elif pieces:
            transport.writelines(pieces)


@lru_cache(maxsize=len(REASONS))
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {REASONS.get(status, '')}\r\n".encode()
