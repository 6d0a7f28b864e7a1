"""Reads one writer's journal, frame by frame, while it may still be written.

A frame that is not whole yet ends a ``read``; the next call goes on from there. Only when a later segment exists
is the rest of a segment known to be final: what is not a valid frame there is stepped over and kept in ``damage``.
Opens files for reading only, so it never disturbs the writer.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from forge.storage.errors import Unavailable
from forge.storage.frames import AnyFrame, decode
from forge.storage.journal_segment import (
    HEADER_BYTES,
    START,
    Position,
    frame_at,
    frame_generation,
    frame_length,
    head_of,
    is_stale,
    segment_path,
    segments,
    step_over,
)

log = logging.getLogger(__name__)

READ_BYTES: Final = 1 << 20
"""Bytes taken from the file at once; a longer frame is read by itself."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One frame and its place. ``end`` is where the next one begins."""

    position: Position
    end: Position
    frame: AnyFrame
    blobs: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a finished segment that hold no readable frame."""

    path: Path
    offset: int
    size: int
    reason: str
    torn: bool = False
    """The end of a segment: a write that a crash cut off leaves the like, and nobody was told of its frame."""

    @property
    def position(self) -> Position:
        return Position(int(self.path.stem), self.offset)

    @property
    def end(self) -> Position:
        return Position(int(self.path.stem), self.offset + self.size)

    def __str__(self) -> str:
        return f"{self.path} at byte {self.offset}, {self.size} bytes: {self.reason}"


class JournalReader:
    """Frames of one writer from ``position`` on. ``position`` is always where the next ``read`` begins."""

    def __init__(self, directory: Path, position: Position = START) -> None:
        self.directory = directory
        self.position = position
        self.damage: list[Damage] = []
        self._fd = -1
        self._fd_segment = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._fd_segment = -1, -1

    @property
    def rest(self) -> list[Damage]:
        """What stands behind the position in the newest segment, if anything does: a frame that is being written, or
        damage."""
        if self._fd < 0:
            return []
        segment, offset = self.position
        view = memoryview(os.pread(self._fd, os.fstat(self._fd).st_size - offset, offset))
        if not len(view) or (is_stale(view, segment) and step_over(view, 0, segment) is None):
            return []
        return [Damage(segment_path(self.directory, segment), offset, len(view), "not a whole frame")]

    def read(self, *, max_frames: int = 4096, max_bytes: int = 16 << 20) -> list[Entry]:
        """The next frames: at least one if one is there, and about ``max_bytes`` at most. Empty at the end."""
        entries: list[Entry] = []
        size = 0
        while len(entries) < max_frames and size < max_bytes:
            before = self.position
            found = self._read_segment(max_frames - len(entries), max_bytes - size)
            entries += found
            size += sum(HEADER_BYTES + len(e.blobs) for e in found)
            if not found and self.position == before and not self._next_segment():
                break
        return entries

    def blobs(self, place: Position) -> bytes:
        """Those of a frame that was read before. Raises ``OSError`` if it is not there any more."""
        path = segment_path(self.directory, place.segment)
        same = place.segment == self._fd_segment
        fd = self._fd if same else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            length = frame_length(memoryview(os.pread(fd, HEADER_BYTES, place.offset)), 0) or 0
            view = memoryview(os.pread(fd, HEADER_BYTES + length, place.offset))
        finally:
            if not same:
                os.close(fd)
        span = frame_at(view, 0, place.segment)
        if span is None:
            raise OSError(errno.EIO, "a frame that was read before is damaged", str(path))
        return bytes(decode(view[span.start : span.end])[1])

    def _read_segment(self, max_frames: int, max_bytes: int) -> list[Entry]:
        """Whole frames at the position, from one read of the file. The position moves past the segment's head."""
        if not self._open():
            return []
        segment, base = self.position
        view = self._bytes(base, min(max_bytes, READ_BYTES))
        entries: list[Entry] = []
        offset = 0
        while len(entries) < max_frames and (span := frame_at(view, offset, segment)) is not None:
            place, end = Position(segment, base + offset), Position(segment, base + span.end)
            entry = self._entry(view[span.start : span.end], place, end)
            if entry is not None:
                entries.append(entry)
            offset, self.position = span.end, end
        return entries

    def _entry(self, payload: memoryview, place: Position, end: Position) -> Entry | None:
        path = segment_path(self.directory, place.segment)
        if place.offset == 0 and head_of(payload, path) is not None:
            return None
        try:
            frame, blobs = decode(payload)
        except (msgspec.DecodeError, ValueError) as error:
            self._damaged(path, place.offset, end.offset - place.offset, f"unknown frame: {error}")
            return None
        return Entry(place, end, frame, bytes(blobs))

    def _open(self) -> bool:
        """Opens the segment of the position; False if there is none yet."""
        if self.position.segment == self._fd_segment:
            return True
        self.close()
        there = segments(self.directory)
        if not there:
            return False
        if self.position.segment == START.segment:
            self.position = Position(there[0], 0)
        if self.position.segment not in there:
            if self.position.segment > there[-1]:
                return False
            raise self._gone(there)
        self._fd = os.open(segment_path(self.directory, self.position.segment), os.O_RDONLY | os.O_CLOEXEC)
        self._fd_segment = self.position.segment
        return True

    def _bytes(self, offset: int, size: int) -> memoryview:
        """At least one whole frame, if the file holds it. Nothing where no frame of this segment begins: what a segment
        held in an earlier life is not read over and over."""
        head = os.pread(self._fd, HEADER_BYTES, offset)
        length = frame_length(memoryview(head), 0)
        if length is None or frame_generation(head) != self.position.segment:
            return memoryview(b"")
        return memoryview(os.pread(self._fd, max(size, HEADER_BYTES + length), offset))

    def _next_segment(self) -> bool:
        """Leaves a segment that is finished; False if this is the newest one."""
        if self._fd < 0:
            return False
        there = segments(self.directory)
        segment, offset = self.position
        later = [s for s in there if s > segment]
        if not later:
            return False
        # The writer may have appended between our last look and its rotation: look once more, now finally.
        view = memoryview(os.pread(self._fd, os.fstat(self._fd).st_size - offset, offset))
        if frame_at(view, 0, segment) is not None:
            return True
        if segment not in there:
            raise self._gone(there)
        following = step_over(view, 0, segment)
        if following is not None or (len(view) and not is_stale(view, segment)):
            size = len(view) if following is None else following
            torn = following is None
            self._damaged(segment_path(self.directory, segment), offset, size, "not a whole frame", torn=torn)
        self.position = Position(later[0], 0) if following is None else Position(segment, offset + following)
        return True

    def _gone(self, there: list[int]) -> Unavailable:
        return Unavailable(
            f"journal segment {segment_path(self.directory, self.position.segment)} is gone; "
            f"the first one kept is {there[0]:08d}",
            "keep more of the journal with --journal-keep, or start a new data directory",
        )

    def _damaged(self, path: Path, offset: int, size: int, reason: str, *, torn: bool = False) -> None:
        log.warning("journal damage skipped: file=%s offset=%d bytes=%d reason=%s", path, offset, size, reason)
        self.damage.append(Damage(path, offset, size, reason, torn))
