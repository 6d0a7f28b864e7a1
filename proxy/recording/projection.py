"""One interval of the journal into parts of the dataset: calls, then sessions, then the samples of finished ones.

Everything written is a function of frames and of the parts before, so doing it again after a crash gives the same
names and rows. Owns the delta chains of sessions (a bounded memory over what the parts say) and when a session's
samples are made: when it is closed and its reward is known or declared null. Knows nothing of processes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from forge.proxy.recording.assembly import ClosedCall, Interval
from forge.proxy.recording.decode import decode_closed
from forge.proxy.recording.memory import Memory
from forge.storage.checkpoint import Checkpoint
from forge.storage.dataset_calls import BrokenDataset, CallReader
from forge.storage.delta import Chain
from forge.storage.parts import Damaged, part_name, part_place, parts_in, read_part, run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from forge.storage.records import Call, RewardStatus, Sample, Session, SessionStatus
from forge.storage.rows import Row, samples
from forge.storage.samples import samples_of

log = logging.getLogger(__name__)

R = TypeVar("R", Call, Session, Sample)

LIVE_SESSIONS_MAX: Final = 50_000
"""Unfinished sessions whose parts are known by name; beyond it the oldest are looked for in all parts of their run."""


@dataclass(slots=True)
class Written:
    """What intervals became."""

    parts: dict[Path, int] = field(default_factory=dict)
    """How many rows each part holds."""
    sessions: list[Session] = field(default_factory=list)


class Projector:
    def __init__(self, data: Path, checkpoint: Checkpoint, *, chain_bytes: int) -> None:
        self._data = data
        self._checkpoint = checkpoint
        self._chain_bytes = chain_bytes
        self._memory = Memory()
        self._chains: dict[tuple[int, str], Chain] = {}
        """By writer and session, the most recent last."""

    def write(self, interval: Interval, written: Written) -> None:
        """Writes the interval's parts and notes them in the checkpoint. The caller flushes their folders, then saves
        it."""
        name = part_name(interval.writer, interval.boot, interval.first, interval.last)
        sessions = _sessions(interval)
        written.sessions += sessions
        for session in sessions:
            if session.status == SessionStatus.OPEN:
                self._checkpoint.live.setdefault(session.session_id, [])
        self._write_calls(interval, name, written)
        for run_id, mine in _by_run(sessions).items():
            self._write(run_dir(table_dir(self._data, "sessions"), run_id) / name, "sessions", mine, written)
        latest = {session.session_id: session for session in sessions}
        self._write_samples([s for s in latest.values() if is_finished(s)], name, written)
        self._forget()

    def decode(self, closed: ClosedCall) -> list[Call]:
        return decode_closed(closed, self._memory)

    def _write_calls(self, interval: Interval, name: str, written: Written) -> None:
        calls = [call for closed in interval.calls for call in closed.rows or self.decode(closed)]
        calls.sort(key=lambda call: (call.seq, call.call_id, call.choice))
        self._checkpoint.counts.add(calls)
        for run_id, mine in _by_run(calls).items():
            path = run_dir(table_dir(self._data, "calls"), run_id) / name
            rows = [self._chain(interval.writer, call, path).add(call) for call in mine]
            self._write(path, "calls", rows, written)
            relative = str(path.relative_to(self._data))
            for session_id in dict.fromkeys(call.session_id for call in mine):
                self._checkpoint.note_part(session_id, relative)

    def _write_samples(self, finished: Sequence[Session], name: str, written: Written) -> None:
        for run_id, mine in _by_run(finished).items():
            own = run_dir(table_dir(self._data, "samples", DEFAULT.name), run_id) / name
            fresh: list[Sample] = []
            for session in mine:
                made = self._samples(session, name)
                known = self._checkpoint.live.pop(session.session_id, None) is not None
                if known or not self._replace_samples(own, session, made, written):
                    fresh += made
            if fresh:
                self._write(own, "samples", fresh, written)

    def _samples(self, session: Session, name: str) -> list[Sample]:
        """The session's samples by the default recipe, from the parts that hold its calls."""
        try:
            calls = self._remembered(session) or self._read(session, name)
        except BrokenDataset as error:
            log.error("no samples of session %s: %s", session.session_id, error.message)
            return []
        return samples_of(session, calls)

    def _remembered(self, session: Session) -> list[Call]:
        """The calls of a session whose chains are all in memory; else []."""
        parts = self._checkpoint.parts_of(session.session_id) or []
        places = [part_place(Path(part)) for part in parts]
        keys = {(place.writer, session.session_id) for place in places if place is not None}
        if not keys <= set(self._chains):
            return []
        return [call for key in sorted(keys) for call in self._chains[key].calls()]

    def _read(self, session: Session, name: str) -> list[Call]:
        damaged: list[Damaged] = []
        return list(CallReader(self._parts_of(session, name), damaged, session_id=session.session_id))

    def _parts_of(self, record: Call | Session, name: str) -> list[Path]:
        """The parts that may hold the session's calls, up to the one called ``name``."""
        known = self._checkpoint.parts_of(record.session_id)
        if known is not None:
            return [self._data / part for part in known]
        # Of this writer nothing later may count: there is something later when the journal is decoded again.
        writer = name[: name.index("-", len("part-")) + 1]
        found = parts_in(table_dir(self._data, "calls"), record.run_id)
        return [path for path in found if not path.name.startswith(writer) or path.name <= name]

    def _replace_samples(self, own: Path, session: Session, made: list[Sample], written: Written) -> bool:
        """A session that was finished before is graded again: its rows change where they are, by one rename."""
        for path in parts_in(own.parent.parent, session.run_id):
            if path == own:
                continue
            try:
                names = read_part(path, "samples", ["session_id"]).column("session_id")
                if not pc.any(pc.equal(names, session.session_id)).as_py():
                    continue
                others = [s for s in samples(read_part(path, "samples")) if s.session_id != session.session_id]
            except (OSError, pa.ArrowException) as error:
                log.warning("skipped: file=%s: %s", path, error)
                continue
            self._write(path, "samples", others + made, written)
            return True
        return False

    def _write(self, path: Path, table: str, rows: Sequence[Row], written: Written) -> None:
        recipe = {"forge.recipe": DEFAULT.to_json().decode()} if table == "samples" else None
        write_part(path, table, rows, metadata=recipe, flush_name=False)
        written.parts[path] = len(rows)

    def _chain(self, writer: int, call: Call, path: Path) -> Chain:
        """The session's chain. One that is not in memory is read back from the parts before ``path``."""
        key = (writer, call.session_id)
        chain = self._chains.pop(key, None)
        if chain is None:
            chain = Chain()
            for earlier in self._earlier_calls(writer, call, path):
                chain.add(earlier)
        self._chains[key] = chain
        return chain

    def _earlier_calls(self, writer: int, call: Call, path: Path) -> Iterable[Call]:
        """Calls of the session that this writer wrote before ``path``. A session that was never opened, or is
        finished, starts anew in every interval: nothing tells the two apart later."""
        if call.session_id not in self._checkpoint.live:
            return []
        paths = self._parts_of(call, path.name)
        mine = [p for p in paths if p.name.startswith(f"part-{writer:02d}-") and p.name < path.name]
        return CallReader(mine, [], session_id=call.session_id)

    def _forget(self) -> None:
        """Keeps memory bounded: chains by size, live sessions by count. Finished sessions have no chain."""
        live = self._checkpoint.live
        for session_id in list(live)[: max(0, len(live) - LIVE_SESSIONS_MAX)]:
            del live[session_id]
        for key in [k for k in self._chains if k[1] not in live]:
            del self._chains[key]
        held = sum(chain.size for chain in self._chains.values())
        for key in list(self._chains):
            if held <= self._chain_bytes:
                return
            held -= self._chains.pop(key).size


def _sessions(interval: Interval) -> list[Session]:
    """The states that the interval's session frames hold, once each."""
    found: list[Session] = []
    for (session_id, revision), text in {(f.session_id, f.revision): f.state for f in interval.sessions}.items():
        try:
            found.append(msgspec.json.decode(text, type=Session))
        except msgspec.DecodeError as error:
            log.error("session state skipped: session=%s revision=%d: %s", session_id, revision, error)
    return found


def is_finished(session: Session) -> bool:
    """Closed, and its reward is known or declared null."""
    return session.status != SessionStatus.OPEN and session.reward_status in (RewardStatus.GRADED, RewardStatus.NULL)


def _by_run(records: Iterable[R]) -> dict[str, list[R]]:
    groups: dict[str, list[R]] = {}
    for record in records:
        groups.setdefault(record.run_id, []).append(record)
    return groups
