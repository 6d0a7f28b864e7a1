"""Frames taken out of a journal, where they stand: their bytes become an empty frame of the same length.

So every place in the journal keeps its meaning: checkpoints, names of parts, a writer that appends behind. A process
that dies half way leaves a frame whose checksum is wrong and whose length is right, which readers step over.
Whoever calls holds the dataset's lock, and knows that nobody writes frames of this run any more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from forge.storage.frames import Boot, Close, Data, Open, SessionFrame, Void, encode
from forge.storage.journal import Entry, JournalReader, Position, journal_dir, segment_path, segments, writers
from forge.storage.journal_segment import HEADER_BYTES, frame_header, payloads, read_head
from forge.storage.journal_spares import spares


@dataclass(slots=True)
class RunFrames:
    """What the journals hold of one run."""

    places: dict[Path, list[tuple[int, int]]] = field(default_factory=dict)
    """Segment to where each frame begins and ends."""
    bytes: int = 0
    calls: set[str] = field(default_factory=set)
    sessions: dict[str, str] = field(default_factory=dict)
    """Session id to its latest state, as JSON."""
    writers: set[int] = field(default_factory=set)
    """Writers whose last start was for this run."""

    def note(self, directory: Path, entry: Entry) -> None:
        path = segment_path(directory, entry.position.segment)
        self.places.setdefault(path, []).append((entry.position.offset, entry.end.offset))
        self.bytes += entry.end.offset - entry.position.offset


def frames_of(data: Path, run_ids: Iterable[str]) -> dict[str, RunFrames]:
    """Reads every journal of a data directory once."""
    found = {run_id: RunFrames() for run_id in run_ids}
    for writer in writers(data):
        _scan(journal_dir(data, writer), writer, found)
    return found


def _scan(directory: Path, writer: int, found: dict[str, RunFrames]) -> None:
    run_of: dict[str, str] = {}
    last_run = _head_run(directory)
    reader = JournalReader(directory, Position(0, 0))
    try:
        while entries := reader.read():
            for entry in entries:
                frame = entry.frame
                run_id = None
                if isinstance(frame, Boot):
                    last_run = frame.run_id
                elif isinstance(frame, Open):
                    run_id = run_of[frame.call_id] = frame.run_id
                elif isinstance(frame, SessionFrame):
                    run_id = frame.run_id
                elif isinstance(frame, Data | Close):
                    run_id = run_of.get(frame.call_id)
                if run_id in found:
                    mine = found[run_id]
                    mine.note(directory, entry)
                    if isinstance(frame, Open):
                        mine.calls.add(frame.call_id)
                    elif isinstance(frame, SessionFrame):
                        mine.sessions[frame.session_id] = frame.state
    finally:
        reader.close()
    if last_run in found:
        found[last_run].writers.add(writer)


def _head_run(directory: Path) -> str:
    """The run of the start that began the newest segment."""
    there = segments(directory)
    head = read_head(segment_path(directory, there[-1])) if there else None
    return head.run_id if head is not None else ""


def void(frames: RunFrames) -> None:
    """Every frame becomes an empty one, on disk when this returns."""
    for path, places in frames.places.items():
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for start, end in places:
                payload = encode(Void()).ljust(end - start - HEADER_BYTES, b"\0")
                os.pwrite(fd, frame_header([payload], len(payload), int(path.stem)) + payload, start)
            os.fdatasync(fd)
        finally:
            os.close(fd)


def wipe_rest(directory: Path, *, live: bool) -> None:
    """What files of a journal still hold of their earlier lives, and torn tails: any of it may be a deleted run's.
    A ``live`` writer's newest segment is left as it is; it is written over soon."""
    for spare in spares(directory):
        spare.unlink(missing_ok=True)
    for segment in segments(directory)[: -1 if live else None]:
        path = segment_path(directory, segment)
        end = _end(path, segment)
        if end < path.stat().st_size:
            os.truncate(path, end)


def _end(path: Path, segment: int) -> int:
    """Where a segment's last whole frame ends."""
    data = path.read_bytes()
    offset, last = next(iter(deque(payloads(data, segment), maxlen=1)), (0, b""))
    return offset if last is None else len(data)
