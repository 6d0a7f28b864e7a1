"""What the journal and the dataset remember at a start: sessions, how often each called, and the last policies."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from forge.proxy.session_spec import Policy
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.frames import Close, Data, Open, SessionFrame
from forge.storage.frames import Policy as PolicyFrame
from forge.storage.journal import JournalReader, Position, journal_dir
from forge.storage.records import Session


@dataclass(slots=True)
class Memory:
    sessions: list[Session] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    """Calls by session."""
    positions: dict[str, list[Position]] = field(default_factory=dict)
    """Places of each session's call frames."""
    policies: dict[str, Policy] = field(default_factory=dict)
    """By replica."""


def remember(data: Path, writer: int) -> Memory:
    """Everything retained; a frame or file that cannot be read is skipped by its reader."""
    memory = Memory(sessions=Dataset(data).sessions())
    reader = JournalReader(journal_dir(data, writer))
    owners: dict[str, str] = {}
    try:
        while entries := reader.read():
            for entry in entries:
                _note(memory, owners, entry.frame, entry.position)
    except Unavailable:
        pass  # a segment was recycled under the reader: the dataset has what it said
    finally:
        reader.close()
    return memory


def _note(memory: Memory, owners: dict[str, str], frame: object, place: Position) -> None:
    match frame:
        case Open():
            memory.calls[frame.session_id] += 1
            owners[frame.call_id] = frame.session_id
            memory.positions.setdefault(frame.session_id, []).append(place)
        case Data() | Close():
            if frame.call_id in owners:
                memory.positions[owners[frame.call_id]].append(place)
        case SessionFrame():
            memory.sessions.append(msgspec.json.decode(frame.state, type=Session))
        case PolicyFrame():
            memory.policies[frame.replica] = Policy(frame.policy_version, frame.policy_lineage, frame.weight_digest)
        case _:
            pass
