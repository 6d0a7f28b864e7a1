"""One connection to a policy server: a request out, its answer in, at most one at a time.

Owns the bytes of HTTP/1.1 on our side of the engine; which server it is, and how many connections there are, is the
client's. Heads and chunks are read by llhttp, which refuses what can be read in two ways; what it lets pass and we do
not is refused here. The non-obvious facts: an answer may come while the request is still being sent; one timer serves
all waits of a connection, for a stream waits for every event and its server is hardly ever late; and a body of stated
length has nothing to be parsed, so its bytes stay the ones that came.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools

from forge.proxy.body_buffer import BUFFERED_FROM, BodyBuffer, Buffered

HEAD_BYTES: Final = 64 << 10
"""Longest head of an answer, interim ones and trailers included."""
BUFFER_BYTES: Final = 512 << 10
"""Of an answer's body that nobody has taken yet: then the server has to wait."""
WHOLE: Final = "application/json"
"""Type of an answer of which nothing is used before its end."""
PIECE_BYTES: Final = 1 << 20
"""Of a long body that is received in one place."""
CLOSED: Final = "the policy server closed the connection"


class BrokeOff(Exception):
    """The exchange failed after the engine may have begun."""


class Silent(BrokeOff):
    """We gave up waiting for it."""


class _Foreign(Exception):
    """What came is no answer that can be trusted."""


Sink = Callable[[bytes], bool]
"""Takes body bytes the moment they come; false: it does not, so they wait to be taken, and all behind them."""


class Connection(asyncio.Protocol):
    """``begin`` sends a request and waits for its answer's head; ``take`` gives the body, piece by piece."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._clock = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._parser = httptools.HttpResponseParser(self)
        self._tls = False
        self._busy = False
        self._waiter: asyncio.Future[bool] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._heard = 0.0
        self._lost: str | None = None
        """Why nothing more can come."""
        self.idle_since = 0.0
        self._forget()

    def _forget(self) -> None:
        """Before a request."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._got: list[bytes] = []
        self._got_bytes = 0
        self._least = 0
        """Body bytes that are waited for; 0: the head is."""
        self._left = 0
        """Of a body of stated length: bytes that are still to come."""
        self.buffer: BodyBuffer | None = None
        """Where a long one is received."""
        self._sink: Sink | None = None
        self._failed: Exception | None = None
        """What the sink raised."""
        self._paused = False
        self._head_bytes = 0
        self._head_done = False
        self._framed = False
        """The answer says itself where it ends."""
        self._kept_alive = False

    async def begin(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Returns once the answer's head is there: ``status`` and ``headers``. Raises ``BrokeOff``."""
        self._forget()
        if self._transport is None or self._lost is not None:
            raise BrokeOff(self._lost or CLOSED)
        self._busy, self._heard = True, self._clock.time()
        self._transport.writelines(pieces)
        while not self._head_done:
            if self._lost is not None:
                raise BrokeOff(self._lost)
            await self._wait(None)

    async def take(self, wait_s: float | None = None, least: int = 1, sink: Sink | None = None) -> list[bytes] | None:
        """Body bytes as they came: ``least`` of them, if the body has so many left. Empty at the end, None if they did
        not come within ``wait_s``, or at ``nudge``. ``sink`` gets first what comes meanwhile. Raises ``BrokeOff``, and
        what the sink raised. Safe to cancel."""
        if self._got_bytes < least and not self.complete:
            end = None if wait_s is None else self._clock.time() + wait_s
            self._least, self._sink = least, sink if not self._got else None
            try:
                while self._got_bytes < least and not self.complete and self._lost is None and self._failed is None:
                    if not await self._wait(end) and end is not None:
                        return None
            except Silent:
                self._give_up()
                if not self._got:
                    raise
            finally:
                self._least, self._sink = 0, None
        if self._failed is not None:
            raise self._failed
        if not self._got and not self.complete and self._lost is not None:
            raise BrokeOff(self._lost)
        got, self._got, self._got_bytes = self._got, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return got

    def nudge(self) -> None:
        """Whoever waits in ``take`` should look at how long."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(False)

    @property
    def reusable(self) -> bool:
        """The answer was read to its end, the request sent to its, and neither side is about to close."""
        if not self.complete or not self._kept_alive or self._lost is not None or self._transport is None:
            return False
        return not self._got and not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    def rest(self) -> None:
        """It is idle from now on. Its timer may ring once more, for nobody: the next call takes it over."""
        self._busy, self.idle_since = False, self._clock.time()

    def alive(self) -> bool:
        """An idle connection can be used: nothing has come on it, not even its end."""
        return self._lost is None and not self._poll.poll(0)

    def drop(self) -> None:
        """Ends the connection; what is not sent yet is not sent any more."""
        self._stop_timer()
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    # Waiting

    async def _wait(self, end: float | None) -> bool:
        """Until something comes; False if nothing has at ``end``. Raises ``Silent``."""
        silent = self._heard + self._silence_s
        self._due = silent if end is None or end > silent else end
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()
        self._waiter = self._clock.create_future()
        try:
            came = await self._waiter
        finally:
            self._waiter = None
        if not came and self._clock.time() >= self._heard + self._silence_s:
            raise Silent(f"nothing came from it for {self._silence_s:g} s")
        return came

    def _set_timer(self) -> None:
        self._stop_timer()
        self._timer = self._clock.call_at(self._due, self._ring)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._clock.time() < self._due:
            self._set_timer()  # something came meanwhile
        else:
            self._waiter.set_result(False)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self._give_up()
        self._wake()

    def _give_up(self) -> None:
        """No more comes: what has is there to be taken."""
        if self.buffer is None:
            return
        begun, self.buffer = self.buffer.take(), None
        if self._transport is not None and self._lost is None:
            self._transport.set_protocol(self)
        if begun:
            self._left -= len(begun)
            self._put(begun)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by name
        self._tls = transport.get_extra_info("sslcontext") is not None
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN | select.POLLRDHUP)

    def data_received(self, data: bytes) -> None:
        self._heard = self._clock.time()
        if not self._busy or self.complete:
            self._break("it said something that nobody asked for")
            return
        if self._left:
            self._go_on(data)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break("it wants another protocol")
            return
        except httptools.HttpParserError as error:
            told = error.__context__ if isinstance(error.__context__, _Foreign) else error
            self._break(f"its answer is no HTTP that can be trusted: {told}")
            return
        if not self._head_done:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._break(f"the head of its answer is longer than {HEAD_BYTES} bytes")
            return
        if self._left >= BUFFERED_FROM and not self._tls and self.headers.get("content-type", "").startswith(WHOLE):
            self._receive_long()
        self._came()

    def _receive_long(self) -> None:
        """What has come of its body moves to where the rest is received."""
        begun = b"".join(self._got)
        self._left += len(begun)
        self._got, self._got_bytes = [], 0
        self.buffer = BodyBuffer(max(len(begun), min(self._left, PIECE_BYTES)), begun)
        if self._transport is not None:
            self._transport.set_protocol(Buffered(self))

    def came(self, count: int) -> None:
        """So many bytes of a long body have been received in ``buffer``."""
        self._heard, buffer = self._clock.time(), self.buffer
        assert buffer is not None
        buffer.came(count)
        if buffer.left:
            return
        self.buffer = None
        self._go_on(buffer.take())
        if self._left >= BUFFERED_FROM:
            self.buffer = BodyBuffer(min(self._left, PIECE_BYTES), b"")
        elif self._transport is not None:
            self._transport.set_protocol(self)

    def _go_on(self, data: bytes) -> None:
        """A body of stated length."""
        too_much = len(data) > self._left
        if too_much:
            data = data[: self._left]
        self._left -= len(data)
        self._put(data)
        if not self._left:
            self.complete, self._parser = True, httptools.HttpResponseParser(self)
        self._came()
        if too_much:
            self._break("its answer is no HTTP that can be trusted: it goes on after its end")

    def _put(self, data: bytes) -> None:
        if self._sink is not None and not self._got and self._failed is None:
            try:
                if self._sink(data):
                    return
            except Exception as error:  # noqa: BLE001 - whoever waits raises it
                self._failed = error
        self._got.append(data)
        self._got_bytes += len(data)

    def _came(self) -> None:
        if self._got_bytes > max(BUFFER_BYTES, self._least) and not self._paused and self._may_wait:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()
        if self._got_bytes >= self._least or self.complete or self._failed is not None:
            self._wake()

    @property
    def _may_wait(self) -> bool:
        """uvloop forgets what it has decrypted and not given if the end of the connection comes then."""
        return self._transport is not None and not (self._tls and "content-length" in self.headers)

    def eof_received(self) -> None:
        if self._head_done and not self._framed:
            self.complete = True
        self._lose(CLOSED)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._lose(f"{CLOSED}: {exc}" if exc is not None else CLOSED)
        self._transport = None

    def _break(self, why: str) -> None:
        """Nothing that comes from now on can be told from what was not asked for."""
        self._kept_alive = False
        self._lose(why)
        if self._transport is not None:
            self._transport.abort()

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise _Foreign("it goes on after its end")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_BYTES:
            raise _Foreign(f"its head is longer than {HEAD_BYTES} bytes")
        if self._head_done:
            return  # a trailer
        key, said = name.decode("latin-1").lower(), value.decode("latin-1")
        if key == "transfer-encoding":
            if said.strip().lower() != "chunked" or key in self.headers:
                raise _Foreign("its transfer encoding is not plainly chunked")
            self._framed = True
        elif key == "content-length":
            self._framed = True
        self.headers[key] = f"{self.headers[key]}, {said}" if key in self.headers else said

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:
            return
        self._head_done = True
        self._framed = self._framed or self.status in (204, 304)
        self._kept_alive = self._parser.should_keep_alive()
        if self.status not in (204, 304) and "transfer-encoding" not in self.headers:
            self._left = int(self.headers.get("content-length", 0))

    def on_body(self, body: bytes) -> None:
        if self._left:
            self._left -= len(body)
        self._put(body)

    def on_message_complete(self) -> None:
        if self.status < 200:
            # An interim answer: the real one is still to come.
            self.status, self.headers, self._framed = 0, {}, False
            return
        self.complete = True
