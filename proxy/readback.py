"""A session's calls as they are now, straight from the journal: what a trainer gets before anything is decoded.

The recorder knows where the session's frames stand; calls of an earlier start whose segments are gone come from the
dataset. Runs in a thread: it reads files and decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forge.proxy.assembly import Assembly
from forge.proxy.decode import decode_call
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.frames import Cut
from forge.storage.journal import Entry, JournalReader, Position, journal_dir
from forge.storage.records import Call

READ_BYTES = 64 << 10
"""Taken at once around a frame; a longer frame is read by itself."""


def calls_of(data: Path, writer: int, run_id: str, session_id: str, places: Sequence[Position]) -> list[Call]:
    """Every closed call, in order; each once."""
    found = _from_journal(data, writer, places)
    known = {call.call_id for call in found}
    earlier = [c for c in Dataset(data).calls(run_id, session_id) if c.call_id not in known]
    return sorted([*earlier, *found], key=lambda call: (call.seq, call.call_id, call.choice))


def _from_journal(data: Path, writer: int, places: Sequence[Position]) -> list[Call]:
    reader = JournalReader(journal_dir(data, writer))
    assembly = Assembly(writer)
    entry: Entry | None = None
    try:
        for place in places:
            reader.position = place
            try:
                entries = reader.read(max_frames=1, max_bytes=READ_BYTES)
            except Unavailable:
                continue  # decoded and recycled: the dataset has it
            for entry in entries:
                assembly.feed(entry)
    finally:
        reader.close()
    if entry is None:
        return []
    bound = assembly.feed(Entry(entry.position, entry.end, Cut(number=0, wall_us=0), b""))
    closed = bound.calls if bound is not None else []
    return [row for call in closed for row in decode_call(call.open, call.request, call.sent, call.answer, call.close)]
