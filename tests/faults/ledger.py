"""Four ledgers of the same calls, compared: what clients read, the engine gave, the journal says, and Parquet holds.

A call is acknowledged when its client has read the end of its answer; it is acted on when the client has read something
that it can act on, whether or not the rest came. Owns the comparison; knows nothing of how calls were made or what went
wrong meanwhile.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from forge.storage.dataset import Dataset
from forge.storage.frames import Close, Open
from forge.storage.journal import JournalReader, journal_dir, writers
from forge.storage.records import Call
from tests.script import Served

WAIT_S = 300


class Seen(NamedTuple):
    """An answer that a client read to its end."""

    wire: str
    sha256: str


@dataclass
class Ledger:
    """What the clients saw."""

    begun: set[str] = field(default_factory=set)
    """Calls whose head arrived."""
    whole: dict[str, Seen] = field(default_factory=dict)
    acted: dict[str, list[str]] = field(default_factory=dict)
    """Arguments of the tool calls that a client could act on, of calls that broke off behind them."""
    chunks: int = 0
    """Pieces of answers, of all calls."""
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def note_chunk(self) -> None:
        self.chunks += 1
        async with self._news:
            self._news.notify_all()

    def note_whole(self, call_id: str, wire: str, answer: bytes) -> None:
        self.whole[call_id] = Seen(wire, hashlib.sha256(answer).hexdigest())

    async def reaches(self, chunks: int) -> None:
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: self.chunks >= chunks)


@dataclass
class Journalled:
    """What the frames of all writers say."""

    opens: list[Open] = field(default_factory=list)
    closes: dict[str, list[Close]] = field(default_factory=dict)
    damage: int = 0

    @classmethod
    def of(cls, data: Path) -> Journalled:
        found = cls()
        for writer in writers(data):
            reader = JournalReader(journal_dir(data, writer))
            while entries := reader.read():
                for entry in entries:
                    if isinstance(entry.frame, Open):
                        found.opens.append(entry.frame)
                    elif isinstance(entry.frame, Close):
                        found.closes.setdefault(entry.frame.call_id, []).append(entry.frame)
            found.damage += len(reader.damage)
            reader.close()
        return found


def compare(
    ledger: Ledger, served: Iterable[Served], data: Path, *, cut: Iterable[str] = ("interrupted",)
) -> list[Call]:
    """All four agree; gives the rows. ``cut``: how calls may have ended that no client read to the end.

    The journal must still be whole: nothing of it given back.
    """
    dataset = Dataset(data)
    rows = list(dataset.calls())
    assert dataset.damaged == []
    journal = Journalled.of(data)
    by_id = {row.call_id: row for row in rows}
    opened = [frame.call_id for frame in journal.opens]
    assert _twice((row.call_id, row.choice) for row in rows) == [], "no row twice"
    assert _twice(opened) == [], "no call twice in the journal"
    assert set(opened) == by_id.keys(), "every call in the journal is a row, and no other"
    assert ledger.begun <= by_id.keys(), "every call that a client heard of is a row"
    assert {c for c, ends in journal.closes.items() if len({end.status for end in ends}) > 1} <= set(cut), (
        "one end each"
    )
    assert journal.closes.keys() == by_id.keys(), "every call has an end"
    for call_id, seen in ledger.whole.items():
        _acknowledged(by_id[call_id], seen)
    for call_id, arguments in ledger.acted.items():
        told = _arguments(by_id[call_id])[: len(arguments)]
        assert told == arguments, f"{call_id} could be acted on, and is not in the data"
    generated = Counter(_generation(one.prompt_ids, one.output_ids) for one in served)
    recorded = Counter(
        _generation(row.prompt_ids.tolist(), row.output_ids.tolist()) for row in rows if row.status == "ok"
    )
    assert recorded <= generated, "what is recorded is what the engine gave, token for token"
    others = {row.status for row in rows if row.call_id not in ledger.whole}
    assert others <= {"ok", "aborted", *cut}, others
    return rows


def _acknowledged(row: Call, seen: Seen) -> None:
    assert (row.status, row.delivered_sha256, row.trainable) == ("ok", seen.sha256, True), (row.call_id, row.status)
    assert len(row.output_ids) == len(row.output_log_probs) == row.completion_tokens


def _arguments(row: Call) -> list[str]:
    said = msgspec.json.decode(row.response or "{}")
    return [call["function"]["arguments"] for call in said.get("tool_calls") or ()]


def _generation(prompt: list[int], output: list[int]) -> tuple[int, int]:
    return hash(tuple(prompt)), hash(tuple(output))


def _twice(keys: Iterable[object]) -> list[object]:
    return [key for key, count in Counter(keys).items() if count > 1]
