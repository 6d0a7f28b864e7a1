"""R5: segments with torn tails, flipped bits and foreign bytes: no crash, no wrong row, the whole prefix kept."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest

from forge.proxy.recording.assembly import Assembly
from forge.proxy.recording.decode import decode_call
from forge.storage.frames import Cut
from forge.storage.journal import Entry, JournalReader, journal_dir, segment_path
from forge.storage.records import Call
from tests.faults.soak import chance, rounds
from tests.storage.frames_kit import Kit
from tests.storage.test_journal_damage import FAST

pytestmark = pytest.mark.process


def told(call: Call) -> tuple[object, ...]:
    ids = (call.prompt_ids.tolist(), call.output_ids.tolist(), call.output_log_probs.tolist())
    return (call.call_id, call.session_id, call.status, call.messages, call.response, *ids, call.trainable)


def rows(data: Path) -> tuple[list[tuple[object, ...]], list[Entry]]:
    """The rows that a journal gives now, and its entries."""
    reader, assembly = JournalReader(journal_dir(data, 0)), Assembly(0)
    found: list[Entry] = []
    while entries := reader.read():
        found += entries
    reader.close()
    if not found:
        return [], []
    end = found[-1].end
    bounds = [assembly.feed(entry) for entry in [*found, Entry(end, end, Cut(number=0, wall_us=0), b"")]]
    calls = [call for bound in bounds if bound is not None for call in bound.calls]
    return [told(row) for c in calls for row in decode_call(c.open, c.request, c.sent, c.answer, c.close)], found


def mutated(raw: bytes, dice: random.Random) -> tuple[bytes, int]:
    """A damaged copy, and from where on it differs."""
    at = dice.randrange(len(raw))
    size = dice.choice((1, 4, 40, 400))
    match dice.randrange(6):
        case 0:
            return raw[:at], at
        case 1:
            return raw[:at] + bytes([raw[at] ^ 1 << dice.randrange(8)]) + raw[at + 1 :], at
        case 2:
            return raw[:at] + dice.randbytes(size) + raw[at + size :], at
        case 3:
            return raw[:at] + bytes(size) + raw[at + size :], at
        case 4:
            return raw[:at] + raw[at + size :], at
        case _:
            other = dice.randrange(len(raw))
            return raw[:at] + raw[other : other + size] + raw[at:], at


def test_no_damage_makes_a_wrong_row() -> None:
    dice = chance("damage")
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        data = Path(folder)
        kit = Kit(data)
        kit.open_session("s00000000001")
        for number in range(6):
            earlier = kit.turns.get("s00000000001", [None])
            kit.call("s00000000001", parent=earlier[-1], stream=bool(number % 2), fresh=4, output=3)
        kit.close()
        path = segment_path(journal_dir(data, 0), 1)
        raw = path.read_bytes()
        true, entries = rows(data)
        assert len(true) == 6
        wrong = 0
        for _ in range(rounds(2_000, 200_000)):
            damaged, at = mutated(raw, dice)
            path.write_bytes(damaged)
            found, read = rows(data)
            kept = [entry.position for entry in entries if entry.end.offset <= at]
            assert [entry.position for entry in read[: len(kept)]] == kept, "the whole prefix"
            wrong += len([row for row in found if row not in true and row[-1]])
        assert wrong == 0, "no trainable row that was not written"
