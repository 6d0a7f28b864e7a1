"""Puts calls, sessions and policy versions into the journal as frames, in the order that the promises need.

Owns the clock of calls, when engine bytes leave memory for the journal, the cuts that bound parts of the dataset,
and where the frames of each session stand. Knows no HTTP. Everything but ``durable`` is synchronous: a frame is in
the kernel when its method returns, so a cancelled handler can still close its call.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from forge.storage.frames import Close, Cut, Data, Open, Policy, SessionFrame
from forge.storage.journal import JournalFull, JournalWriter, Position
from forge.storage.records import CallStatus, Session

log = logging.getLogger(__name__)

PENDING_CLOSES: Final = 4096
"""Calls whose ``close`` could not be written and waits for the disk; more than these are closed at the next start."""
BESIDE: Final = -1
"""Attempt of the frames that no answer is read from."""
RETIRED: Final = 1024
"""Closed sessions whose frames can still be found without the dataset."""


def wall_us() -> int:
    return time.time_ns() // 1000


def mono_us() -> int:
    return time.monotonic_ns() // 1000


@dataclass(slots=True)
class Recorder:
    journal: JournalWriter
    cut_bytes: int
    data_frame_bytes: int
    positions: dict[str, array[int]] = field(default_factory=dict)
    """Session id to the packed places of its calls' frames, for reading a session back before it is decoded."""
    failures: int = 0
    failing: bool = False
    """The last frame could not be written."""
    unsettled: dict[str, None] = field(default_factory=dict)
    """Calls whose reply waits to see their ``close`` on disk."""
    last_cut: Position | None = None
    """Where the frame after the last cut begins."""
    cut_due: bool = False
    """A session has ended or was graded since the last cut. Those that do so at about the same time share one: each
    part of the dataset costs several flushes, however little it holds."""
    _started: int = field(default_factory=mono_us)
    _last_mono: int = 0
    _cuts: int = 0
    _changed: bool = False
    _retired: deque[str] = field(default_factory=deque)
    _pending: dict[str, Close] = field(default_factory=dict)
    _left: int = 0
    """To be closed at the next start."""

    @property
    def unrecorded(self) -> int:
        """Calls that have ended and whose end is not in the journal: 0 unless the disk refuses."""
        return len(self._pending) + self._left

    def now(self) -> int:
        """Microseconds since the start, strictly increasing."""
        now = time.monotonic_ns() // 1000 - self._started
        self._last_mono = now = now if now > self._last_mono else self._last_mono + 1
        return now

    def open(self, frame: Open, request: bytes, *sent: bytes) -> Recording:
        """Raises ``JournalFull``: the call is not accepted."""
        if self._pending:
            self.retry_pending()
        self.append(frame.session_id, frame, request, *sent)
        return Recording(self, frame.call_id, frame.session_id, frame.mono_us, frame.kind)

    def append(self, session_id: str, frame: Open | Data | Close, *blobs: bytes | memoryview) -> Position:
        try:
            end = self.journal.append_many(((frame, blobs),))
        except JournalFull:
            self.failures += 1
            self.failing = self._changed = True  # so that the next cut tries
            raise
        self.failing = False
        if (places := self.positions.get(session_id)) is not None:
            places.extend(self.journal.last)
        if type(frame) is Close:
            self._closed_one()
        return end

    def append_end(self, session_id: str, data: tuple[Data, list[bytes]] | None, close: Close) -> Position:
        """What waits of a call, and its end, by one system call. Raises ``JournalFull``."""
        if data is None:
            return self.append(session_id, close)
        places = self.positions.get(session_id)
        try:
            end = self.journal.append_many((data, (close, ())))
        except JournalFull as error:
            self.failures += 1
            if error.written and places is not None:
                places.extend(self.journal.last[: error.written])
            raise
        if places is not None:
            places.extend(self.journal.last)
        self._closed_one()
        return end

    def _closed_one(self) -> None:
        self._changed = True
        if self.journal.bytes_since_cut >= self.cut_bytes:
            self.cut()

    def track(self, session_id: str) -> None:
        """Remember from now on where the session's frames stand."""
        self.positions.setdefault(session_id, array("Q"))

    def retire(self, session_id: str) -> None:
        """The session is closed. Its places are kept for a while: whoever closed it may ask again."""
        self._retired.append(session_id)
        if len(self._retired) > RETIRED:
            self.positions.pop(self._retired.popleft(), None)

    def session(self, state: Session, event: str) -> None:
        """Raises ``JournalFull``."""
        text = msgspec.json.encode(state).decode()
        frame = SessionFrame(
            session_id=state.session_id,
            run_id=state.run_id,
            event=event,
            revision=state.revision,
            state=text,
            wall_us=wall_us(),
        )
        self.journal.append(frame)
        self._changed = True
        self.cut_due = self.cut_due or event != "open"

    def policy(self, replica: str, version: int, lineage: str | None, digest: str | None) -> None:
        self.journal.append(
            Policy(
                replica=replica, policy_version=version, policy_lineage=lineage, weight_digest=digest, wall_us=wall_us()
            )
        )

    def cut(self) -> None:
        """Bounds a part of the dataset, if anything was closed or changed since the last one."""
        self.cut_due = False
        if not self._changed:
            return
        try:
            cut = Cut(number=self._cuts + 1, wall_us=wall_us(), unsettled=tuple(self.unsettled))
            self.last_cut = self.journal.append(cut)
        except JournalFull as error:
            log.warning("cut not written: %s", error.message)
            return
        self._cuts += 1
        self.failing = False
        self._changed = bool(self.unsettled)

    def pend(self, session_id: str, frame: Close) -> None:
        """A ``close`` that could not be written: the call's client never saw its end, so it is ``interrupted``."""
        if len(self._pending) >= PENDING_CLOSES:
            self.unsettled.pop(frame.call_id, None)
            self._left += 1
            return
        self._pending[session_id + "/" + frame.call_id] = msgspec.structs.replace(
            frame, status=CallStatus.INTERRUPTED, error="recorder_unavailable: its end could not be written"
        )

    def retry_pending(self) -> None:
        """Closes the calls that the disk did not take; quiet while it still does not."""
        for name, frame in list(self._pending.items()):
            try:
                self.append(name.partition("/")[0], frame)
            except JournalFull:
                return
            del self._pending[name]
            self.unsettled.pop(frame.call_id, None)


@dataclass(slots=True)
class Recording:
    """One accepted call on its way into the journal."""

    recorder: Recorder
    call_id: str
    session_id: str
    opened_us: int
    kind: str = "main"
    attempt: int = 0
    first_byte_us: int | None = None
    closed: bool = False
    _waiting: list[bytes] = field(default_factory=list)
    _waiting_bytes: int = 0
    tap: bytearray | None = None
    """Also gets every engine byte (budgets count tokens from them)."""
    at_end: Callable[[], None] | None = None
    """Called when its end is written: before its client can act on that."""

    def data(self, chunk: bytes) -> bytes:
        """Takes engine bytes, and gives them back; written at once only when enough wait. A full disk shows at
        ``flush`` or ``close``."""
        if self.first_byte_us is None:
            self.first_byte_us = self.recorder.now() - self.opened_us
        if self.tap is not None:
            self.tap += chunk
        self._waiting.append(chunk)
        self._waiting_bytes += len(chunk)
        if self._waiting_bytes >= self.recorder.data_frame_bytes:
            self.flush()
        return chunk

    def beside(self, chunk: bytes) -> None:
        """Engine bytes from which the answer is made, but which are no part of it. Raises ``JournalFull``."""
        self.flush()
        self.recorder.append(self.session_id, Data(call_id=self.call_id, attempt=BESIDE), chunk)

    def instead(self, whole: bytes) -> None:
        """The answer is this; what was said before stays written, as an attempt of its own. Raises ``JournalFull``."""
        self.flush()
        self.attempt += 1
        if self.tap is not None:
            self.tap.clear()
        self.data(whole)

    def flush(self) -> Position:
        """Every engine byte so far is in the journal when this returns. Raises ``JournalFull``."""
        if not self._waiting:
            return self.recorder.journal.end
        frame, blobs = self._waits()
        end = self.recorder.append(self.session_id, frame, *blobs)
        self._waiting, self._waiting_bytes = [], 0
        return end

    def _waits(self) -> tuple[Data, list[bytes]]:
        return Data(call_id=self.call_id, attempt=self.attempt), self._waiting

    def close(self, frame: Close) -> Position:
        """Writes what waits, then the end. Raises ``JournalFull``; the end is then tried again later, by itself."""
        self.closed = True
        try:
            end = self.recorder.append_end(self.session_id, self._waits() if self._waiting else None, frame)
        except JournalFull:
            self.recorder.pend(self.session_id, frame)
            raise
        if self.at_end is not None:
            self.at_end()
        return end

    async def end(self, frame: Close) -> None:
        """Writes the end and returns once it is as durable as was asked for. Raises ``JournalFull``: the answer must
        be withheld. A ``close`` that was written but not flushed gives way to one that says so."""
        recorder = self.recorder
        if recorder.journal.durability != "disk":
            self.close(frame)
            return
        recorder.unsettled[self.call_id] = None
        position = self.close(frame)
        try:
            await recorder.journal.durable(position)
        except JournalFull:
            recorder.pend(self.session_id, frame)
            recorder.retry_pending()
            raise
        except BaseException:
            # Its client left: nothing is withheld from anyone.
            recorder.unsettled.pop(self.call_id, None)
            raise
        recorder.unsettled.pop(self.call_id, None)
