"""The journal against the dataset: every accepted call has its rows, under the session that it was accepted for.

Reads the journal that is kept, changes nothing. Not obvious: only what the decoder's checkpoint says is in parts is
asked for, so a run can be looked at while it is recorded; and old segments may be gone, which is a note, no gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from forge.storage import checkpoint
from forge.storage.errors import ForgeError
from forge.storage.frames import Close, Cut, Open, SessionFrame, seq
from forge.storage.journal import Entry, JournalReader, journal_dir
from forge.storage.journal_segment import Position, segments, writers
from forge.storage.records import Session
from forge.verify.facts import Facts
from forge.verify.report import Finding, Kind, finding

WRITER_BITS: Final = 0x3F
"""Of a call's ``seq``."""
OWN: Final = ("revision", "task_id", "group_id", "rollout_index", "purpose", "harness", "reward", "reward_status")


@dataclass(slots=True)
class Accepted:
    """What the journal tells of one run."""

    sessions: dict[str, str] = field(default_factory=dict)
    """Call to the session it was accepted for; of calls that must have rows."""
    states: dict[str, Session] = field(default_factory=dict)
    """The last state of each session that is decoded."""
    pending: set[str] = field(default_factory=set)
    """Accepted and not decoded yet."""
    whole: bool = True
    """The journal goes back to its first segment."""
    last: dict[int, int] = field(default_factory=dict)
    """Writer to the ``seq`` of its last accepted call, of any run: what comes after it is newer than this reading."""
    notes: list[str] = field(default_factory=list)

    def settled(self, call: Facts) -> bool:
        """Its interval was decoded when the journal was read: all that follows from it is in parts."""
        newest = self.last.get(call.seq & WRITER_BITS)
        return call.call_id not in self.pending and (newest is None or call.seq <= newest)


def accepted(data: Path, run_id: str) -> Accepted:
    """To be read before the dataset: what is decoded by now is in parts by then."""
    found = Accepted()
    marks = checkpoint.load(data)
    numbers = writers(data)
    for number in numbers:
        folder = journal_dir(data, number)
        there = segments(folder)
        found.whole &= bool(there) and there[0] <= 1
        try:
            _read(found, folder, run_id, Position(*marks.mark(number).position))
        except ForgeError as error:
            found.notes.append(f"journal {folder} was not read to its end: {error.message}")
    if not numbers:
        found.whole = False
        found.notes.append("there is no journal: whether every accepted call has a row cannot be told")
    return found


def _read(found: Accepted, folder: Path, run_id: str, decoded: Position) -> None:
    opens: dict[str, str] = {}
    closed: set[str] = set()
    unsettled: tuple[str, ...] = ()
    for entry in _entries(folder):
        frame = entry.frame
        if isinstance(frame, Open):
            found.last[frame.writer & WRITER_BITS] = seq(frame)
        if isinstance(frame, Open) and frame.run_id == run_id:
            opens[frame.call_id] = frame.session_id
        elif entry.end > decoded:
            continue
        elif isinstance(frame, Close):
            closed.add(frame.call_id)
        elif isinstance(frame, Cut):
            unsettled = frame.unsettled
        elif isinstance(frame, SessionFrame) and frame.run_id == run_id:
            known = found.states.get(frame.session_id)
            if known is None or known.revision <= frame.revision:
                with suppress(msgspec.DecodeError):  # the decoder leaves such a state out, and says so
                    found.states[frame.session_id] = msgspec.json.decode(frame.state, type=Session)
    closed.difference_update(unsettled)
    found.sessions |= {call: session for call, session in opens.items() if call in closed}
    found.pending |= opens.keys() - closed


def _entries(folder: Path) -> Iterator[Entry]:
    reader = JournalReader(folder)
    try:
        while entries := reader.read():
            yield from entries
    finally:
        reader.close()


def check_accepted(found: Accepted, calls: Sequence[Facts], sessions: Mapping[str, Session]) -> list[Finding]:
    rows = {call.call_id: call.session_id for call in calls}
    elsewhere = [i for i, session in found.sessions.items() if i in rows and rows[i] != session]
    unknown = [c.call_id for c in calls if found.whole and c.call_id not in found.sessions and found.settled(c)]
    differ = [i for i, state in found.states.items() if i not in sessions or not _same(state, sessions[i])]
    return [
        *finding(Kind.SESSION, "sessions are not what the journal last said of them", differ),
        *finding(
            Kind.GAP,
            "accepted calls have no row: forge decode --rebuild makes the dataset anew from the journal",
            [call_id for call_id in found.sessions if call_id not in rows],
        ),
        *finding(Kind.GAP, "calls have a row, and the journal has no such call", unknown),
        *finding(Kind.SESSION, "calls stand under another session than they were accepted for", elsewhere),
    ]


def _same(said: Session, row: Session) -> bool:
    """Whose it is and what it earned; a row may be ahead of what was read of the journal."""
    return said.revision < row.revision or all(getattr(said, name) == getattr(row, name) for name in OWN)
