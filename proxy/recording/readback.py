"""A session's calls as they are now, straight from the journal: what a trainer gets before anything is decoded.

The recorder knows where the session's frames stand, of the last sessions that closed too; for older ones the journal is
read from the decoder's mark on. Calls whose segments are gone come from the dataset. Runs in a thread: it reads files
and decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forge.proxy.recording.assembly import Assembly
from forge.proxy.recording.decode import decode_closed
from forge.proxy.recording.memory import Memory
from forge.storage.checkpoint import load
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.frames import Close, Cut, Data, Open
from forge.storage.journal import Entry, JournalReader, Position, journal_dir
from forge.storage.records import Call

READ_BYTES = 64 << 10
"""Taken at once around a frame; a longer frame is read by itself."""


def calls_of(
    data: Path, writer: int, run_id: str, session_id: str, places: Sequence[Position] | None, *, all_known: bool
) -> list[Call]:
    """Every closed call, in order; each once. ``all_known``: ``places`` are those of all its frames; None where they
    were forgotten."""
    if places is None:
        found, readable = _since_mark(data, writer, session_id), False
    else:
        found, readable = _from_journal(data, writer, places)
    if not readable or not all_known:
        known = {call.call_id for call in found}
        found += [call for call in Dataset(data).calls(run_id, session_id) if call.call_id not in known]
    return sorted(found, key=lambda call: (call.seq, call.call_id, call.choice))


def _from_journal(data: Path, writer: int, places: Sequence[Position]) -> tuple[list[Call], bool]:
    """The calls, and whether every place could still be read."""
    reader = JournalReader(journal_dir(data, writer))
    assembly = Assembly(writer)
    entry: Entry | None = None
    readable = True
    try:
        for place in places:
            reader.position = place
            try:
                entries = reader.read(max_frames=1, max_bytes=READ_BYTES)
            except Unavailable:
                readable = False  # decoded and recycled: the dataset has it
                continue
            for entry in entries:
                assembly.feed(entry)
    finally:
        reader.close()
    return _rows(assembly, entry), readable


def _since_mark(data: Path, writer: int, session_id: str) -> list[Call]:
    """What the decoder has not made rows of yet, however far it is behind. What it decodes meanwhile is in the dataset,
    which is read after this."""
    reader = JournalReader(journal_dir(data, writer), Position(*load(data).mark(writer).oldest))
    assembly = Assembly(writer)
    mine: set[str] = set()
    entry: Entry | None = None
    try:
        while entries := reader.read():
            for found in entries:
                frame = found.frame
                if isinstance(frame, Open) and frame.session_id == session_id:
                    mine.add(frame.call_id)
                if isinstance(frame, Open | Data | Close) and frame.call_id in mine:
                    assembly.feed(found)
                    entry = found
    except Unavailable:
        pass  # recycled under the reader: the dataset has what it said
    finally:
        reader.close()
    return _rows(assembly, entry)


def _rows(assembly: Assembly, last: Entry | None) -> list[Call]:
    """Of all calls that have closed, up to the last frame."""
    if last is None:
        return []
    bound = assembly.feed(Entry(last.position, last.end, Cut(number=0, wall_us=0), b""))
    closed = bound.calls if bound is not None else []
    memory = Memory()
    return [row for call in closed for row in decode_closed(call, memory)]
