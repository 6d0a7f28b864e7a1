"""One connection of the data plane: a request in, its answer out, then the next, strictly in order.

Owns when bytes are read, who serves them, and how a connection ends. What a request means is the handler's,
which runs in a task of its own from the moment the head is whole. The non-obvious facts: a connection that closes while
something still comes on it is reset, and its last answer lost, so the end of ours is said first and the rest let pass;
and no connection has a timer, the doors look at all of them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final, cast

import msgspec

from forge.proxy.body_buffer import BodyBuffer, Buffered
from forge.proxy.config import Limits
from forge.proxy.door.head import Heads, Malformed
from forge.proxy.door.outlet import Gone, Outlet
from forge.proxy.door.reading import Reading
from forge.proxy.door.request import Request

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[None]]
"""Answers through the request's outlet. A cancelled one has no client any more."""

Elsewhere = Callable[[Request, asyncio.Transport, bytes], bool]
"""Whether a request is another process's, which then gets the connection and all that has come since the request
began."""

AHEAD_BYTES: Final = 64 << 10
"""Of requests behind the one that is served; then their sender has to wait."""
LINGER_S: Final = 10.0
"""For a client to take its last answer and close, or to send a body that nobody wants."""
NEVER: Final = float("inf")
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_NOT_HTTP: Final = msgspec.json.encode(
    {
        "error": {
            "message": "this request could not be read",
            "type": "bad_request",
            "param": None,
            "code": "bad_request",
        }
    }
)
NOT_HTTP: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
    % (len(_NOT_HTTP), _NOT_HTTP)
)


class Door(asyncio.Protocol):
    """``doors``: where it stands while it is open."""

    def __init__(
        self, handler: Handler, limits: Limits, doors: set[Door], heads: Heads, elsewhere: Elsewhere | None = None
    ) -> None:
        self._handler = handler
        self._elsewhere = elsewhere
        self._read: list[bytes] = []
        """What has come of a head, where it may have to go elsewhere."""
        self._limits = limits
        self._doors = doors
        self._clock = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reading = Reading(limits.body_bytes, heads)
        self._ahead: list[bytes] = []
        """What came behind the request that is served."""
        self._ahead_bytes = 0
        self._paused = False
        self._ending = False
        """Our end is said: what comes is nothing to us."""
        self._room: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.full = False
        """Too much is unsent."""
        self.due = NEVER
        """When its client is too slow, in the loop's time."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._doors.add(self)
        self._rest()

    def data_received(self, data: bytes) -> None:
        reading = self._reading
        if self._ending:
            return
        if reading.ended:
            self._keep(data)
            return
        was_in_head, before = reading.in_head, reading.request
        if self._elsewhere is not None and before is None:
            self._read.append(data)
        try:
            used = reading.feed(data)
        except Malformed as error:
            self._refuse(error)
            return
        request = reading.request
        if request is None:
            if not was_in_head:
                self.due = self._clock.time() + self._limits.head_s
            return
        if before is None:
            if self._elsewhere is not None and self._went(request):
                return
            self._begin(request)
        if reading.buffer is not None and self._transport is not None:
            self._transport.set_protocol(Buffered(self))
        if used < len(data):
            self._keep(data[used:])
        if self.task is None and reading.ended:
            self._next(request)  # it was answered before, and nobody wanted its body
        elif self.task is not None and request.too_large:
            self._pause()

    @property
    def buffer(self) -> BodyBuffer | None:
        return self._reading.buffer

    def came(self, count: int) -> None:
        """So many bytes of a long body have been received in ``buffer``."""
        reading = self._reading
        reading.came(count)
        if reading.buffer is not None:
            return
        if self._transport is not None:
            self._transport.set_protocol(self)
        if self.task is None and reading.ended and reading.request is not None and not self._ending:
            self._next(reading.request)

    def eof_received(self) -> None:
        """Who says no more takes no more: the transport closes."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._doors.discard(self)
        self._reading.close()
        self._ahead.clear()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    # Reading

    def _went(self, request: Request) -> bool:
        """Whether another process serves it; then nothing that happens here is the connection's any more."""
        if self._elsewhere is None:
            return False
        assert self._transport is not None
        read, self._read = b"".join(self._read), []
        if not self._elsewhere(request, self._transport, read):
            return False
        self._ending, self.due = True, NEVER
        self._doors.discard(self)
        return True

    def _begin(self, request: Request) -> None:
        assert self._transport is not None
        self.due = NEVER
        request.transport, request.outlet = self._transport, Outlet(request, self)
        self.task = self._clock.create_task(self._serve(request))

    def _keep(self, data: bytes) -> None:
        self._ahead.append(data)
        self._ahead_bytes += len(data)
        if self._ahead_bytes > AHEAD_BYTES:
            self._pause()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    # Serving

    async def _serve(self, request: Request) -> None:
        try:
            await self._handler(request)
        except Gone:
            self.hang_up()
        finally:
            self.task = None
            self._served(request)

    def _served(self, request: Request) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not request.outlet.ended:
            self.hang_up()
        elif self._reading.ended:
            self._next(request)
        else:
            # The client may still be sending, and looks at its answer when it has.
            request.refuse_body()
            self.due = self._clock.time() + LINGER_S
            self._resume()

    def _next(self, request: Request) -> None:
        """It is answered, and was read to its end."""
        self._reading.next()
        if request.broken or not request.outlet.kept:
            self._end()
            return
        ahead, self._ahead, self._ahead_bytes = b"".join(self._ahead), [], 0
        self._rest()
        self._resume()
        if ahead:
            self.data_received(ahead)

    def _rest(self) -> None:
        """Nothing is asked: the client has time."""
        self.due = self._clock.time() + self._limits.idle_s

    async def room(self) -> bool:
        """Waits until less is unsent; false: the client takes nothing."""
        self._room = self._clock.create_future()
        try:
            async with asyncio.timeout(self._limits.write_s):
                await self._room
        except TimeoutError:
            return False
        finally:
            self._room = None
        return True

    # Ending

    def _refuse(self, error: Malformed) -> None:
        """What is no HTTP never reaches a route; the answer, and the log, quote none of it."""
        log.warning("not HTTP, answered with 400: %s", error)
        assert self._transport is not None
        self._transport.write(NOT_HTTP)
        self._end()

    def _end(self) -> None:
        """Says our end; the client's may take a while."""
        if self._transport is None or self._transport.is_closing():
            return
        self._ending, self.due = True, self._clock.time() + LINGER_S
        self._ahead.clear()
        self._resume()
        self._transport.write_eof()

    def hang_up(self) -> None:
        """Ends the connection where it is; what is written still goes out."""
        if self._transport is not None:
            self._ending, self.due = True, self._clock.time() + self._limits.write_s
            self._transport.close()

    def give_up(self) -> None:
        """The client was too slow."""
        if self._transport is None:
            return
        if self._ending:
            self._transport.abort()
        elif self._reading.in_head:
            self._transport.write(TOO_SLOW)
            self._end()
        else:
            self.hang_up()
