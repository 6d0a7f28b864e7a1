"""The connections of the data plane: how long a request's head may take to arrive.

Knows bytes and time only. The non-obvious fact: the HTTP server below limits how long a connection may be idle, and
how large a head may be, but not how slowly one may come; so the clock runs from a head's first byte until its request
is handed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Doors(web.Server):
    """Makes one ``Door`` per connection."""

    def __init__(self, handler: Handler, *, head_s: float, handler_cancellation: bool, **options: Any) -> None:
        super().__init__(self._serve, handler_cancellation=handler_cancellation)
        self._handler = handler
        self._head_s = head_s
        self._options = options

    def __call__(self) -> Door:
        return Door(self, head_s=self._head_s, loop=asyncio.get_running_loop(), **self._options)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        door = request.protocol
        assert isinstance(door, Door)
        door.begin()
        try:
            return await self._handler(request)
        finally:
            door.end()


class Door(web.RequestHandler):
    """One connection."""

    def __init__(self, doors: Doors, *, head_s: float, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(doors, loop=loop, **options)
        self._clock = loop
        self._head_s = head_s
        self._timer: asyncio.TimerHandle | None = None
        self._serving = False

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is None and not self._serving:
            self._timer = self._clock.call_later(self._head_s, self._give_up)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def begin(self) -> None:
        """A whole head has come; its body has a limit of its own."""
        self._serving = True
        self._stop()

    def end(self) -> None:
        self._serving = False

    def log_exception(self, *args: Any, **details: Any) -> None:
        """Without the request's own bytes: a malformed header may be a key."""
        error = details.get("exc_info")
        log.warning("a request could not be read: %s", type(error).__name__ if error is not None else args[:1])

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP never reaches a route; the answer quotes none of it."""
        log.warning("not HTTP, answered with %d: %s", status, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        error = {
            "message": "this request could not be read",
            "type": "bad_request",
            "param": None,
            "code": "bad_request",
        }
        response = web.Response(
            status=status, body=msgspec.json.encode({"error": error}), content_type="application/json"
        )
        response.force_close()
        return response

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport is not None:
            self.transport.write(TOO_SLOW)
        self.force_close()
