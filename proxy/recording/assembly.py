"""Frames to intervals: which calls closed, and which sessions changed, between two cuts of one writer.

Pure, and the same frames always give the same intervals, so decoding can start over anywhere. A ``boot`` bounds an
interval as a ``cut`` does: what a dead writer left is closed before it, and no interval spans two boots.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from forge.storage.frames import Boot, Close, Cut, Data, Open, Policy, SessionFrame
from forge.storage.journal import Entry, Position
from forge.storage.records import Call

log = logging.getLogger(__name__)

HELD_BYTES: Final = 64 << 20
"""Of open calls; what is beyond it stays in the journal alone, and is read again when its call ends."""


@dataclass(frozen=True, slots=True)
class ClosedCall:
    """All that was recorded of one call."""

    open: Open
    blobs: bytes
    answer: bytes
    close: Close
    rows: list[Call] | None = None
    """Decoded as soon as it closed, where the assembly was told how; its bytes are then not kept."""

    @property
    def request(self) -> bytes:
        """The harness's own."""
        return self.blobs[: self.open.request_len]

    @property
    def sent(self) -> bytes:
        """What the engine got."""
        if self.open.sent_len < 0:
            return self.request
        rest = memoryview(self.blobs)[self.open.request_len :]
        if self.open.sent_shared is None:
            return bytes(rest)
        start, stop, at = self.open.sent_shared
        return b"".join((rest[:at], memoryview(self.blobs)[start:stop], rest[at:]))


@dataclass(slots=True)
class Interval:
    """What lies between two bounds. ``first`` is the place of its first frame, ``last`` where the next one begins."""

    writer: int
    boot: int
    first: Position
    last: Position
    calls: list[ClosedCall] = field(default_factory=list)
    sessions: list[SessionFrame] = field(default_factory=list)
    policies: list[Policy] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    """The bytes of a frame, or where they are to be read again."""

    place: Position
    blobs: bytes | None
    attempt: int = 0


@dataclass(slots=True)
class _OpenCall:
    frame: Open
    request: _Held
    pieces: list[_Held] = field(default_factory=list)
    """Engine bytes."""
    close: Close | None = None
    """The last one that came."""
    rows: list[Call] | None = None
    """Of that one."""

    def drop(self) -> int:
        """Lets go of all bytes; gives how many those were."""
        dropped = 0
        for held in (self.request, *self.pieces):
            dropped += len(held.blobs or b"")
            held.blobs = None
        return dropped

    def closed(self, read: Callable[[Position], bytes] | None) -> ClosedCall:
        close = self.close
        assert close is not None
        if self.rows is not None:
            return ClosedCall(self.frame, b"", b"", close, self.rows)

        def bytes_of(held: _Held) -> bytes:
            if held.blobs is not None:
                return held.blobs
            assert read is not None
            return read(held.place)

        answer = b"".join(bytes_of(held) for held in self.pieces if held.attempt == close.attempt)
        return ClosedCall(self.frame, bytes_of(self.request), answer, close)


class Assembly:
    """Feed it one writer's entries in order; it gives an ``Interval`` at each bound.

    ``replay_until``: frames before this place were decoded by an earlier process; of them only the calls that were
    still open matter.
    """

    def __init__(
        self,
        writer: int,
        *,
        boot: int = 0,
        replay_until: Position | None = None,
        decode: Callable[[ClosedCall], list[Call]] | None = None,
        read: Callable[[Position], bytes] | None = None,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        """``decode``: makes rows of a call at once, while its bytes are still in the processor's caches. ``read``: the
        bytes of the frame that stands at a place; with it no more than ``held_bytes`` of open calls are held."""
        self._decode = decode
        self._read = read
        self._limit = held_bytes
        self.held = 0
        """Bytes of calls that are open."""
        self._writer = writer
        self._boot = boot
        self._replay_until = replay_until
        self._open: dict[str, _OpenCall] = {}
        self._ended: dict[str, _OpenCall] = {}
        """Closed since the last bound, or not settled at it."""
        self._sessions: list[SessionFrame] = []
        self._policies: list[Policy] = []
        self._first: Position | None = None

    @property
    def oldest(self) -> Position | None:
        """Where the first frame of a call that is in no interval yet stands."""
        return min((call.request.place for calls in (self._open, self._ended) for call in calls.values()), default=None)

    @property
    def boot(self) -> int:
        return self._boot

    @property
    def pending_run(self) -> str | None:
        """A run that has frames after the last bound; None if nothing waits for one."""
        for call in (*self._open.values(), *self._ended.values()):
            return call.frame.run_id
        return self._sessions[0].run_id if self._sessions else None

    def feed(self, entry: Entry) -> Interval | None:
        frame = entry.frame
        replayed = self._replay_until is not None and entry.position < self._replay_until
        if not replayed and self._first is None:
            self._first = entry.position
        match frame:
            case Open():
                self._open[frame.call_id] = _OpenCall(frame, self._hold(entry))
            case Data():
                self._data(frame, entry, replayed)
            case Close():
                self._close(frame, entry, replayed)
            case SessionFrame() if not replayed:
                self._sessions.append(frame)
            case Policy() if not replayed:
                self._policies.append(frame)
            case Cut() | Boot():
                calls = self._settle(frame.unsettled if isinstance(frame, Cut) else ())
                return self._bound(entry, calls) if not replayed else None
        return None

    def _data(self, frame: Data, entry: Entry, replayed: bool) -> None:
        call = self._open.get(frame.call_id)
        if call is not None:
            call.pieces.append(self._hold(entry, frame.attempt))
        elif not replayed:
            log.warning("data of an unknown call: call=%s at=%s", frame.call_id, entry.position)

    def _close(self, frame: Close, entry: Entry, replayed: bool) -> None:
        call = self._open.pop(frame.call_id, None) or self._ended.get(frame.call_id)
        if call is not None:
            call.close, call.rows = frame, None
            self._ended[frame.call_id] = call
            if self._decode is not None and not replayed:
                call.rows = self._decode(call.closed(self._read))
                if self._read is not None:
                    self.held -= call.drop()
        elif not replayed:
            log.warning("close of an unknown call: call=%s at=%s", frame.call_id, entry.position)

    def _hold(self, entry: Entry, attempt: int = 0) -> _Held:
        """The oldest calls are let go of first: the newest are the likeliest to end soon."""
        self.held += len(entry.blobs)
        calls = iter((*self._open.values(), *self._ended.values())) if self._read and self.held > self._limit else ()
        for call in calls:
            self.held -= call.drop()
            if self.held <= self._limit // 2:
                break
        return _Held(entry.position, entry.blobs, attempt)

    def _settle(self, unsettled: Sequence[str]) -> list[ClosedCall]:
        """The calls that this bound ends with."""
        ended, self._ended = self._ended, {}
        for call_id in unsettled:
            if call_id in ended:
                self._ended[call_id] = ended.pop(call_id)
        closed = [call.closed(self._read) for call in ended.values()]
        self.held -= sum(call.drop() for call in ended.values())
        return closed

    def _bound(self, entry: Entry, calls: list[ClosedCall]) -> Interval:
        # The boot that opened the interval names it: a boot frame ends the interval of the boot before it.
        interval = Interval(
            self._writer,
            self._boot,
            self._first or entry.position,
            entry.end,
            calls,
            self._sessions,
            self._policies,
        )
        self._sessions, self._policies, self._first = [], [], None
        if isinstance(entry.frame, Boot):
            self._boot = entry.frame.boot
        return interval
