"""An engine's answer on its way to the client: each chunk recorded, read by the dialect, then given on or held.

Owns the waiting for the engine, and keepalives meanwhile. It must not know how a call ends. The one non-obvious fact: a
chunk of a stream goes through the moment it comes, without waking the call's task, for as long as nothing that it needs
has to be waited for; whatever does is the task's, and all behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from forge.proxy.calls.continuation import Continuation
from forge.proxy.calls.delivery import Delivery
from forge.proxy.calls.scrub import Scrub
from forge.proxy.config import Limits
from forge.proxy.dialects.base import Answer, Dialect
from forge.proxy.recording.recorder import Recording
from forge.proxy.upstreams.client import BrokeOff, Reply


@dataclass(slots=True)
class Passage:
    """Of one call."""

    dialect: Dialect
    answer: Answer
    delivery: Delivery
    recording: Recording
    limits: Limits
    stream: bool
    redact: Callable[[bytes], bytes]
    """For errors that the engine says within its answer."""
    continuation: Continuation | None = None
    """Where the engine may give the answer up and go on with it."""
    chunks: list[bytes] = field(default_factory=list)
    """Of a whole body, all that came."""
    _record: Callable[[bytes], bytes] = field(init=False)
    _scrub: Scrub = field(init=False)
    _reply: Reply | None = None
    _size: int = 0
    _full: bool = False
    """The client has to take some first."""

    async def run(self, reply: Reply) -> None:
        """Reads the answer to its end. Raises ``BrokeOff``, ``JournalFull`` and ``ClientLeft``."""
        part: Reply | None = reply
        going_on = self.continuation
        self._record = self.recording.data if going_on is None else going_on.feed
        try:
            while part is not None:
                await self._part(part)
                part = await going_on.go_on() if going_on is not None else None
        except BrokeOff:
            await self._held_back()
            if going_on is not None:
                await self._feed(going_on.rest())
            raise
        if going_on is not None:
            await self._feed(going_on.rest())

    async def keep_alive(self) -> float | None:
        """Sends a keepalive if one is due; gives the seconds until the next one. None where there is no stream."""
        if not self.delivery.started:
            return None
        quiet_s = self.limits.keepalive_s - self.delivery.silent_s
        if quiet_s > 0:
            return quiet_s
        await self.delivery.write(self.dialect.keepalive)
        return self.limits.keepalive_s - self.delivery.silent_s

    async def _part(self, reply: Reply) -> None:
        self._reply, self._scrub = reply, Scrub(self.redact, whole=not self.stream)
        if not self.stream:
            return await self._body(reply)
        sink = self._pass if self.recording.recorder.journal.durability != "disk" else None
        ends = inf
        while True:
            if self._full:
                await self.delivery.taken()
                self._full = False
            if self.answer.complete and ends == inf:
                ends = time.monotonic() + self.limits.end_s
            wait = await self.keep_alive() if ends == inf else ends - time.monotonic()
            chunks = await reply.take(wait, 1, sink)
            if chunks is None and time.monotonic() < ends:
                continue  # a keepalive is due, the client has to take some, or something came behind the end mark
            if not chunks:
                return await self._held_back()
            for chunk in chunks:
                if said := self._scrub.feed(chunk):
                    await self._feed(self._record(said))

    async def _body(self, reply: Reply) -> None:
        """A whole one: nobody gets any of it before its end."""
        while chunks := await reply.take(None, self.recording.recorder.data_frame_bytes):
            for chunk in chunks:
                self._size += len(chunk)
                if self._size > self.limits.answer_bytes:
                    raise BrokeOff(f"its answer is larger than {self.limits.answer_bytes} bytes")
                self.chunks.append(chunk)
                if said := self._scrub.feed(chunk):
                    await self._feed(self._record(said))
        await self._held_back()

    async def _held_back(self) -> None:
        """What may have become an error, of a part that has ended."""
        if said := self._scrub.end():
            await self._feed(self._record(said))

    def _pass(self, chunk: bytes) -> bool:
        """A stream's chunk the moment it comes; false where the client has to take some first."""
        if self._full:
            return False
        said = self._scrub.feed(chunk)
        data = self._record(said) if said else b""
        pieces = self.answer.feed(data) if data else ()
        if pieces:
            self._full = self.delivery.put(pieces)
        if (self._full or self.answer.complete) and self._reply is not None:
            self._reply.nudge()
        return True

    async def _feed(self, data: bytes) -> None:
        pieces = self.answer.feed(data) if data else ()
        if self.stream:
            await self.delivery.give(pieces)
        else:
            for piece in pieces:
                self.delivery.hold(piece.data)
