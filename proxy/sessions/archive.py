"""Closed sessions that are no more in memory: which there are, and how they are read back.

Reading is of files, so it runs in a thread. The one non-obvious fact: the journal is read before the dataset, because
the decoder is at work meanwhile: what it has taken out of the one stands in the other by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow.compute as pc

from forge.storage.checkpoint import load
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.frames import AnyFrame, Close, Open, SessionFrame
from forge.storage.journal import JournalReader, Position, journal_dir, writers
from forge.storage.records import CallStatus, Session, SessionStatus

FILTER_BITS: Final = 1 << 24
"""Two megabytes: of a million sessions one unknown name in two thousand passes for one of them."""
FILTER_PROBES: Final = 7


class Forgotten:
    """Names that were added, in fixed room: none of them is missed, and few others pass for one."""

    def __init__(self, bits: bytes = bytes(FILTER_BITS // 8)) -> None:
        self.bits = bytearray(bits)
        """Another one, made of these, has the same names."""

    def add(self, name: str) -> None:
        for at in _probes(name):
            self.bits[at >> 3] |= 1 << (at & 7)

    def __contains__(self, name: str) -> bool:
        return all(self.bits[at >> 3] & 1 << (at & 7) for at in _probes(name))


def _probes(name: str) -> Iterator[int]:
    digest = hashlib.blake2b(name.encode(), digest_size=4 * FILTER_PROBES).digest()
    for at in range(0, len(digest), 4):
        yield int.from_bytes(digest[at : at + 4], "big") % FILTER_BITS


class Found(NamedTuple):
    session: Session | None
    calls: int
    complete: bool
    """Every part with sessions could be read."""


class Archive:
    def __init__(self, data: Path, writer: int) -> None:
        self._data = data
        self._writer = writer

    def session(self, session_id: str) -> Found:
        """Its latest revision, and how many calls it had; late ones are none of its."""
        state, calls, late = self._journal(session_id)
        dataset = Dataset(self._data)
        known = dataset.session(session_id)
        if known is not None and (state is None or state.revision < known.revision):
            state = known
        complete = not dataset.damaged
        for table in dataset.call_tables(("session_id", "call_id", "status"), state.run_id) if state else ():
            for row in table.filter(pc.equal(table["session_id"], session_id)).to_pylist():
                (late if row["status"] == CallStatus.LATE else calls).add(row["call_id"])
        return Found(state, len(calls - late), complete)

    def closed(self, after: tuple[int, str], until: tuple[int, str], limit: int) -> list[Session]:
        """Sessions in the order in which they closed: the first ``limit`` of those behind ``after``, up to
        ``until``."""
        latest: dict[str, Session] = {}
        for state in (*self._states(), *Dataset(self._data).sessions(writer=self._writer)):
            known = latest.get(state.session_id)
            if known is None or known.revision < state.revision:
                latest[state.session_id] = state
        ended = {(s.close_us or 0, s.session_id): s for s in latest.values() if s.status != SessionStatus.OPEN}
        return [ended[place] for place in sorted(ended) if after < place <= until][:limit]

    def is_elsewhere(self, session_id: str) -> bool:
        """Whether another writer's frames tell of a session that ours do not."""
        for writer in writers(self._data):
            if writer == self._writer:
                continue
            if any(isinstance(f, SessionFrame) and f.session_id == session_id for f in self._frames(writer)):
                return True
        return Dataset(self._data).session(session_id) is not None

    def _journal(self, session_id: str) -> tuple[Session | None, set[str], set[str]]:
        """(latest revision, calls, late ones) that are not in the dataset yet."""
        state: Session | None = None
        calls, late = set[str](), set[str]()
        for frame in self._frames(self._writer):
            match frame:
                case SessionFrame(session_id=found) if found == session_id:
                    state = msgspec.json.decode(frame.state, type=Session)
                case Open(session_id=found) if found == session_id:
                    calls.add(frame.call_id)
                case Close(status=CallStatus.LATE) if frame.call_id in calls:
                    late.add(frame.call_id)
                case _:
                    pass
        return state, calls, late

    def _states(self) -> list[Session]:
        return [
            msgspec.json.decode(f.state, type=Session)
            for f in self._frames(self._writer)
            if isinstance(f, SessionFrame)
        ]

    def _frames(self, writer: int) -> Iterator[AnyFrame]:
        """Of a journal, from the decoder's mark on."""
        oldest = load(self._data).mark(writer).oldest
        reader = JournalReader(journal_dir(self._data, writer), Position(*oldest))
        try:
            while entries := reader.read():
                yield from (entry.frame for entry in entries)
        except Unavailable:
            pass  # a segment was recycled under the reader: the dataset, which is read after this, has what it said
        finally:
            reader.close()
