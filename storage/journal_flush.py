"""Brings appended frames to the disk, behind the writer's back.

One thread calls ``fdatasync`` 20 ms after the first unflushed append, or at once when somebody waits; all that was
appended meanwhile is one group. A file handed over at rotation is flushed, then closed, here: nobody else may close
a file that a flush is using; and the new one's name is flushed before what is in it, so no append waits for a disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

from forge.storage import crash
from forge.storage.errors import Unavailable
from forge.storage.files import fsync_dir
from forge.storage.journal_segment import START, Position

log = logging.getLogger(__name__)

FLUSH_INTERVAL_S: Final = 0.020
"""Longest wait between an append and the start of its flush."""


class JournalFull(Unavailable):
    """A frame could not be written or flushed. ``written`` frames of an ``append_many`` are in the file."""

    def __init__(self, message: str, hint: str = "free disk space; recording goes on by itself", written: int = 0):
        super().__init__(message, hint)
        self.written = written


class Flusher:
    """``wrote`` after every append; ``wait`` for a position to be on disk. ``folder``: where the files are."""

    def __init__(self, name: str, folder: Path) -> None:
        self._folder = folder
        self._begun = False
        """A file's name may not be on disk."""
        self._cond = threading.Condition()
        self._written = (-1, START)
        """The file that is written, and how far."""
        self._retired: list[int] = []
        self._flushed = START
        self._lost = (START, START)
        """What the disk refused last. Linux drops such pages: a later flush succeeds without them."""
        self._dirty_since: float | None = None
        self._flushing_since: float | None = None
        self._urgent = False
        self._stop = False
        self._waiters: list[tuple[Position, asyncio.Future[None]]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def lag_s(self) -> float:
        """Age of the oldest append that is not on disk; 0 when all is."""
        since = self._flushing_since or self._dirty_since
        return 0.0 if since is None else max(0.0, time.monotonic() - since)

    def wrote(self, fd: int, end: Position) -> None:
        # Most appends find a flush due already, and need no lock: ``_run`` takes that back before it looks how far.
        self._written = (fd, end)
        if self._dirty_since is None:
            with self._cond:
                self._dirty_since = time.monotonic()
                self._cond.notify()

    def begin(self, retired: int) -> None:
        """A file was begun; takes over the one that nobody writes any more (below 0: there was none)."""
        with self._cond:
            self._begun = True
            if retired >= 0:
                self._retired.append(retired)
            self._dirty_since = self._dirty_since or time.monotonic()
            self._cond.notify()

    async def wait(self, position: Position) -> None:
        """Returns once everything before ``position`` is on disk; raises ``JournalFull`` if the disk refuses."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._cond:
            if self._lost[0] < position <= self._lost[1]:
                raise _refused("an earlier flush failed")
            if self._flushed >= position:
                return
            self._waiters.append((position, future))
            self._urgent = True
            self._cond.notify()
        await future

    def close(self) -> None:
        """Flushes what is left and ends the thread. The writer's own file stays open."""
        with self._cond:
            self._stop = True
            self._cond.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._await_work():
            with self._cond:
                retired, self._retired = self._retired, []
                begun, self._begun = self._begun, False
                self._flushing_since, self._dirty_since, self._urgent = self._dirty_since, None, False
                fd, end = self._written
                fds = [*retired, fd] if fd >= 0 else retired
            crash.point("flush")
            error = self._flush(fds, begun=begun)
            for fd in retired:
                os.close(fd)
            crash.point("flushed")
            self._settle(end, error)

    def _flush(self, fds: list[int], *, begun: bool) -> OSError | None:
        """Gives what the disk refused last."""
        error: OSError | None = None
        try:
            if begun:
                fsync_dir(self._folder)
        except OSError as raised:
            error, self._begun = raised, True
        for fd in fds:
            try:
                os.fdatasync(fd)
            except OSError as raised:
                error = raised
        if error is not None:
            log.error("journal flush failed: %s", error)
        return error

    def _await_work(self) -> bool:
        """Waits until a flush is due; False when there is nothing left and the writer is closing."""
        with self._cond:
            while self._dirty_since is None and not self._stop:
                self._cond.wait()
            if self._dirty_since is None:
                return False
            due = self._dirty_since + FLUSH_INTERVAL_S
            while not self._urgent and not self._stop and (left := due - time.monotonic()) > 0:
                self._cond.wait(left)
            return True

    def _settle(self, end: Position, error: OSError | None) -> None:
        with self._cond:
            self._flushing_since = None
            if error is None:
                self._flushed = end
            else:
                self._lost = (self._flushed, end)
            done = [w for w in self._waiters if w[0] <= end]
            self._waiters = [w for w in self._waiters if w[0] > end]
        for _, future in done:
            loop = future.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, future, error)


def _resolve(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(_refused(error))


def _refused(why: object) -> JournalFull:
    return JournalFull(f"the journal could not be flushed to disk: {why}")
