"""The journal: append only, one writer per folder, the source of everything else.

``JournalWriter`` owns ``DATA/journal/w<NN>/``: one system call per append, 64 MB segments that are written over once
decoded, a flush thread, an exclusive lock. What a call promised to its client is here before the client sees it. A tail
that is not a whole frame (a crash) is left as evidence and the next segment begun; readers step over it. Knows nothing
of the decoder, which reads the same files from another process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypeAlias

from forge import __version__
from forge.storage import crash
from forge.storage.errors import Unavailable
from forge.storage.files import lock_file, make_folder
from forge.storage.frames import AnyFrame, Boot, Close, Cut, Open, encode
from forge.storage.journal_flush import Flusher, JournalFull
from forge.storage.journal_reader import Damage, Entry, JournalReader
from forge.storage.journal_recovery import left_behind, next_boot
from forge.storage.journal_segment import (
    FORMAT,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    SEGMENT_BYTES,
    START,
    Position,
    SegmentHead,
    frame_header,
    journal_dir,
    packed,
    segment_path,
    segments,
    unpacked,
    writers,
)
from forge.storage.journal_spares import take

__all__ = [
    "START",
    "Damage",
    "Entry",
    "JournalFull",
    "JournalReader",
    "JournalWriter",
    "Position",
    "journal_dir",
    "packed",
    "segment_path",
    "segments",
    "unpacked",
    "writers",
]

Blob: TypeAlias = bytes | bytearray | memoryview
Durability = Literal["process", "disk"]
_IOV_MAX = 1024
_position: Callable[[tuple[int, int]], Position] = partial(tuple.__new__, Position)


def _wall_us() -> int:
    return time.time_ns() // 1000


class JournalWriter:
    """Appends frames. Not thread safe: one event loop owns it; only flushing happens elsewhere."""

    boot: int
    """Start number over this data directory, from 1."""
    interrupted: list[str]
    """Calls found dead at the start; their ``close`` frames are written."""
    bytes_since_cut: int
    last: list[int]
    """Where the frames begin that were appended last, packed."""

    def __init__(
        self,
        directory: Path,
        writer: int,
        *,
        boot: int,
        run_id: str,
        durability: Durability,
        segment_bytes: int,
        lock: int,
    ) -> None:
        self.directory = directory
        self.writer = writer
        self.boot = boot
        self.run_id = run_id
        self.durability = durability
        self.interrupted = []
        self.bytes_since_cut = 0
        self.last = []
        self._segment_bytes = segment_bytes
        self._lock = lock
        self._fd = -1
        self._segment = 0
        self._size = 0
        self._end = START
        self._ragged = False
        self._why = ""
        self._opens: dict[str, None] = {}
        self._flusher = Flusher(f"journal-flush-w{writer:02d}", directory)

    @classmethod
    def open(
        cls,
        data: Path,
        writer: int,
        *,
        run_id: str,
        durability: Durability = "process",
        segment_bytes: int = SEGMENT_BYTES,
        wall_us: Callable[[], int] = _wall_us,
    ) -> Self:
        """Takes the folder, closes the calls that the last writer left open, and writes the ``boot`` frame."""
        directory = journal_dir(data, writer)
        with ExitStack() as undo:
            try:
                make_folder(directory)
                lock = lock_file(directory / "lock", f"data directory {data} is in use")
                undo.callback(os.close, lock)
                boot = next_boot(data)
            except OSError as error:
                raise Unavailable(
                    f"journal {directory} cannot be opened: {error.strerror or error}",
                    "check who owns it and that the disk has room",
                ) from error
            journal = cls(
                directory,
                writer,
                boot=boot,
                run_id=run_id,
                durability=durability,
                segment_bytes=segment_bytes,
                lock=lock,
            )
            undo.pop_all()
            undo.callback(journal.close)
            journal._begin(wall_us())
            undo.pop_all()
        return journal

    def _begin(self, wall_us: int) -> None:
        """Closes what the last writer left open, and says that we have started."""
        left = left_behind(self.directory)
        self._opens = dict.fromkeys(left.opens)
        self._segment = left.segment
        if not left.clean or left.size >= self._segment_bytes:
            self._rotate()
        else:
            self._fd = os.open(segment_path(self.directory, left.segment), os.O_WRONLY | os.O_CLOEXEC)
            self._size = left.size
            self._end = Position(left.segment, left.size)
            self._flusher.begin(-1)  # the last writer may have been killed before its name was flushed
        frames: list[AnyFrame] = [Close(call_id=c, status="interrupted") for c in left.opens]
        frames.append(Boot(boot=self.boot, run_id=self.run_id, wall_us=wall_us, forge_version=__version__))
        self.append_many([(frame, ()) for frame in frames])
        self.interrupted = left.opens

    @property
    def end(self) -> Position:
        """Where the next frame will begin."""
        return self._end

    @property
    def flush_lag_s(self) -> float:
        """Age of the oldest frame that is not on disk yet."""
        return self._flusher.lag_s

    def append(self, frame: AnyFrame, *blobs: Blob) -> Position:
        """Writes one frame by one system call; gives the position after it. After ``kill -9`` it is still there.

        Raises ``JournalFull``; the file then ends with its last whole frame, and the next append tries again.
        """
        return self.append_many(((frame, blobs),))

    def append_many(self, items: Sequence[tuple[AnyFrame, Sequence[Blob]]]) -> Position:
        """The same for several frames in order. ``JournalFull.written`` says how many of them are in the file."""
        if self._ragged:
            self._mend()
        if self._size >= self._segment_bytes:
            self._rotate()
        buffers: list[Blob] = []
        ends: list[int] = []
        starts: list[int] = []
        size, segment = self._size, self._segment
        for frame, blobs in items:
            pieces = [encode(frame), *blobs]
            length = sum(map(len, pieces))
            if length > FRAME_BYTES_MAX:
                raise ValueError(f"a frame of {length} bytes is longer than {FRAME_BYTES_MAX}")
            buffers.append(frame_header(pieces, length, segment))
            buffers += pieces
            starts.append(packed(segment, size))
            size += HEADER_BYTES + length
            ends.append(size)
        self.last = starts
        if crash.at is not None:
            crash.point("append")
        whole = self._write(buffers, ends)
        if crash.at is not None:
            crash.point("appended")
        for frame, _ in items[:whole]:
            self._note(frame)
        if whole < len(items):
            raise JournalFull(f"journal {self.directory} cannot be written: {self._why}", written=whole)
        return self._end

    async def durable(self, position: Position) -> None:
        """With durability ``disk``: returns once everything before ``position`` is on disk. Else at once."""
        if self.durability == "disk":
            await self._flusher.wait(position)

    def close(self) -> None:
        """Flushes, and gives the folder free. Open calls stay open: the next start closes them."""
        self._flusher.close()
        if self._fd >= 0:
            self._trim()
            os.close(self._fd)
        os.close(self._lock)

    def _note(self, frame: AnyFrame) -> None:
        if type(frame) is Open:
            self._opens[frame.call_id] = None
        elif type(frame) is Close:
            self._opens.pop(frame.call_id, None)
        elif type(frame) is Cut:
            self.bytes_since_cut = 0

    def _write(self, buffers: list[Blob], ends: list[int]) -> int:
        """Writes all, whatever part the kernel takes at once; gives how many frames are whole in the file."""
        offset = before = self._size
        try:
            while offset < ends[-1]:
                done = os.pwritev(self._fd, buffers[:_IOV_MAX], offset)
                offset += done
                if offset < ends[-1]:
                    buffers = _after(buffers, done)
        except OSError as error:
            self._why = error.strerror or str(error)
        whole = len(ends) if offset >= ends[-1] else sum(end <= offset for end in ends)
        self._size = ends[whole - 1] if whole else before
        self.bytes_since_cut += self._size - before
        self._ragged = offset != self._size or whole < len(ends)
        if whole:
            self._end = _position((self._segment, self._size))
            self._flusher.wrote(self._fd, self._end)
        if self._ragged:
            self._cut_ragged()
        return whole

    def _cut_ragged(self) -> None:
        try:
            os.ftruncate(self._fd, self._size)
            self._ragged = False
        except OSError as error:
            self._why = error.strerror or str(error)

    def _mend(self) -> None:
        """A tail that could not be cut off after a failed write is cut off before anything is written behind it."""
        self._cut_ragged()
        if self._ragged:
            raise JournalFull(f"journal {self.directory} cannot be written: {self._why}")

    def _rotate(self) -> None:
        """Begins the next segment; the old one is flushed and closed by the flush thread."""
        segment = self._segment + 1
        path = segment_path(self.directory, segment)
        head = SegmentHead(
            format=FORMAT,
            segment=segment,
            writer=self.writer,
            boot=self.boot,
            run_id=self.run_id,
            opens=list(self._opens),
        ).payload()
        record = frame_header([head], len(head), segment) + head
        try:
            fd = take(self.directory, segment, lambda fd: _write_whole(fd, record))
        except OSError as error:
            raise JournalFull(f"journal segment {path} cannot be made: {error.strerror or error}") from error
        if self._fd >= 0:
            self._trim()
        self._flusher.begin(self._fd)
        self._fd, self._segment, self._size = fd, segment, len(record)
        self._end = Position(segment, len(record))
        crash.point("segment-begun")

    def _trim(self) -> None:
        """A finished segment ends with its last frame, whatever its file held before."""
        with suppress(OSError):
            os.ftruncate(self._fd, self._size)


def _write_whole(fd: int, record: bytes) -> None:
    if os.pwrite(fd, record, 0) != len(record):
        raise OSError("short write")


def _after(buffers: list[Blob], done: int) -> list[Blob]:
    """The buffers less their first ``done`` bytes."""
    index = 0
    while index < len(buffers) and done >= len(buffers[index]):
        done -= len(buffers[index])
        index += 1
    rest = buffers[index:]
    if done:
        rest[0] = memoryview(rest[0])[done:]
    return rest
