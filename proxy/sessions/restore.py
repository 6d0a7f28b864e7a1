"""What the journal and the dataset remember at a start: sessions, what each has used, and the last policies.

The journal is read from the decoder's mark on; what lies before it is in the dataset. So a start costs what is not
decoded yet, not what is kept.
"""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from forge.proxy.recording.assembly import Assembly, Interval
from forge.proxy.recording.decode import decode_closed
from forge.proxy.recording.memory import Memory as DecodeMemory
from forge.proxy.sessions.live import Used
from forge.proxy.sessions.spec import Policy
from forge.storage import checkpoint as checkpoints
from forge.storage.checkpoint import Checkpoint
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Unavailable
from forge.storage.frames import Close, Cut, Data, Open, SessionFrame
from forge.storage.frames import Policy as PolicyFrame
from forge.storage.journal import Entry, JournalReader, Position, journal_dir, packed
from forge.storage.parts import parts_in, read_part, table_dir
from forge.storage.records import Session, SessionStatus

log = logging.getLogger(__name__)

USED_COLUMNS: Final = ("session_id", "call_id", "choice", "prompt_len", "output_ids", "completion_tokens")


@dataclass(slots=True)
class Memory:
    sessions: list[Session] = field(default_factory=list)
    used: dict[str, Used] = field(default_factory=lambda: defaultdict(Used))
    """By session: of open ones, and of all that called after the decoder's mark."""
    positions: dict[str, array[int]] = field(default_factory=dict)
    """Packed places of each session's call frames."""
    policies: dict[str, Policy] = field(default_factory=dict)
    """By replica."""
    complete: bool = True
    """Every part with sessions could be read."""
    doubtful: set[str] = field(default_factory=set)
    """Sessions that read as open, but that the decoder has seen end: the part that says so cannot be read."""


def remember(data: Path, writer: int) -> Memory:
    """A frame or file that cannot be read is skipped by its reader."""
    checkpoint, dataset = _checkpoint(data), Dataset(data)
    mark = checkpoint.mark(writer)
    memory = Memory(sessions=dataset.sessions(writer=writer), complete=not dataset.damaged)
    if dataset.damaged:
        open_ones = {s.session_id for s in memory.sessions if s.status == SessionStatus.OPEN}
        memory.doubtful = open_ones - checkpoint.live.keys()
    memory.policies = {replica: Policy(*known) for replica, known in mark.policies.items()}
    replay = _Replay(memory, Assembly(writer, replay_until=Position(*mark.position)))
    # Loaded again, after the sessions: a dead proxy's decoder may still be at work, and what it adds counts once.
    replay.recorded(data, _checkpoint(data))
    reader = JournalReader(journal_dir(data, writer), Position(*mark.oldest))
    try:
        while entries := reader.read():
            for entry in entries:
                replay.feed(entry)
    except Unavailable:
        pass  # a segment was recycled under the reader: the dataset has what it said
    finally:
        reader.close()
    replay.end()
    return memory


def _checkpoint(data: Path) -> Checkpoint:
    try:
        return checkpoints.load(data)
    except BadInput as error:
        log.warning("everything kept is read: %s", error.message)
        return Checkpoint()


class _Replay:
    """Frames and rows into a memory; each call counts once, whichever it comes from first."""

    def __init__(self, memory: Memory, assembly: Assembly) -> None:
        self._memory = memory
        self._assembly = assembly
        self._owners: dict[str, str] = {}
        self._counted: set[str] = set()
        """Calls whose number is in ``used``."""
        self._decoded: set[str] = set()
        """Those whose tokens are too."""
        self._budgeted = {s.session_id for s in memory.sessions if s.budgets is not None}
        self._last: Entry | None = None
        self._decoding = DecodeMemory()

    def recorded(self, data: Path, checkpoint: Checkpoint) -> None:
        """What the dataset says of the calls of open sessions."""
        open_ones = {s.session_id: s.run_id for s in self._memory.sessions if s.status == SessionStatus.OPEN}
        paths: dict[Path, None] = {}
        for session_id, run_id in open_ones.items():
            known = checkpoint.parts_of(session_id)
            found = parts_in(table_dir(data, "calls"), run_id) if known is None else [data / part for part in known]
            paths |= dict.fromkeys(found)
        for path in paths:
            try:
                self._rows(read_part(path, "calls", USED_COLUMNS), open_ones)
            except (OSError, pa.ArrowException, BadInput) as error:
                log.warning("budgets do not count a file that cannot be read: file=%s: %s", path, error)

    def _rows(self, table: pa.Table, open_ones: Iterable[str]) -> None:
        table = table.filter(pc.is_in(table["session_id"], pa.array(list(open_ones), pa.string())))
        lengths = pc.list_value_length(table["output_ids"]).to_pylist()
        for row, length in zip(table.drop_columns(["output_ids"]).to_pylist(), lengths, strict=True):
            self._call(row["session_id"], row["call_id"])
            self._tokens(row["session_id"], row["prompt_len"], length or row["completion_tokens"] or 0)
            self._decoded.add(row["call_id"])

    def feed(self, entry: Entry) -> None:
        self._last, memory, frame = entry, self._memory, entry.frame
        match frame:
            case Open():
                self._call(frame.session_id, frame.call_id)
                self._owners[frame.call_id] = frame.session_id
                memory.positions.setdefault(frame.session_id, array("Q")).append(packed(*entry.position))
            case Data() | Close():
                if frame.call_id in self._owners:
                    memory.positions[self._owners[frame.call_id]].append(packed(*entry.position))
            case SessionFrame():
                self._session(msgspec.json.decode(frame.state, type=Session))
            case PolicyFrame():
                memory.policies[frame.replica] = Policy(frame.policy_version, frame.policy_lineage, frame.weight_digest)
            case _:
                pass
        self._interval(self._assembly.feed(entry))

    def end(self) -> None:
        """Counts what follows the last cut."""
        if self._last is not None:
            last = self._last.end
            self._interval(self._assembly.feed(Entry(last, last, Cut(number=0, wall_us=0), b"")))

    def _interval(self, interval: Interval | None) -> None:
        if interval is None:
            return
        for closed in interval.calls:
            session_id, call_id = closed.open.session_id, closed.open.call_id
            if session_id not in self._budgeted or call_id in self._decoded:
                continue
            for row in decode_closed(closed, self._decoding):
                self._tokens(session_id, len(row.prompt_ids), len(row.output_ids) or row.completion_tokens or 0)

    def _session(self, state: Session) -> None:
        self._memory.sessions.append(state)
        if state.budgets is not None:
            self._budgeted.add(state.session_id)

    def _call(self, session_id: str, call_id: str) -> None:
        if call_id not in self._counted:
            self._counted.add(call_id)
            self._memory.used[session_id].calls += 1

    def _tokens(self, session_id: str, prompt: int, output: int) -> None:
        used = self._memory.used[session_id]
        used.output_tokens += output
        used.context = max(used.context, prompt + output)
