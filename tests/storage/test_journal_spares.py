"""Decoded segments are written over: what they held before is never read, and costs no reader anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.storage.errors import Unavailable
from forge.storage.frames import Data
from forge.storage.journal import JournalReader, JournalWriter, Position, journal_dir, segment_path, segments
from forge.storage.journal_spares import SPARES_MAX, give_back

SEGMENT = 4000


def fill(journal: JournalWriter, first: int, count: int, size: int = 700) -> None:
    for number in range(first, first + count):
        journal.append(Data(call_id=f"c{number}"), bytes([number % 251]) * size)


def numbers(reader: JournalReader) -> list[int]:
    found: list[int] = []
    while entries := reader.read(max_frames=3):
        for entry in entries:
            if isinstance(entry.frame, Data):
                number = int(entry.frame.call_id[1:])
                assert entry.blobs == bytes([number % 251]) * len(entry.blobs)
                found.append(number)
    return found


def recycled(tmp_path: Path) -> tuple[JournalWriter, Path]:
    """A writer in a segment whose file has lived before."""
    directory = journal_dir(tmp_path, 0)
    journal = JournalWriter.open(tmp_path, 0, run_id="r", segment_bytes=SEGMENT)
    fill(journal, 0, 20)
    inode = segment_path(directory, 1).stat().st_ino
    give_back(directory, 1)
    fill(journal, 20, 5)
    last = segments(directory)[-1]
    assert segment_path(directory, last).stat().st_ino == inode, "the file is used again"
    return journal, directory


def test_a_reader_sees_only_what_the_segment_holds_now(tmp_path: Path) -> None:
    journal, directory = recycled(tmp_path)
    reader = JournalReader(directory)
    found = numbers(reader)
    assert found == list(range(found[0], 25))
    for number in range(25, 60, 3):
        fill(journal, number, 3, size=number * 7 % 900)
        assert numbers(reader) == [number, number + 1, number + 2]
    journal.close()
    assert numbers(reader) == []
    assert reader.damage == []


def test_after_a_crash_the_rest_of_an_earlier_life_is_no_damage_and_is_never_written_behind(tmp_path: Path) -> None:
    journal, directory = recycled(tmp_path)
    fill(journal, 25, 1)
    before = journal.end
    stale = segment_path(directory, before.segment).stat().st_size - before.offset
    assert stale > 0
    # As after kill -9: nothing is trimmed. The lock goes with the process.
    held = segment_path(directory, before.segment).read_bytes()
    journal.close()
    segment_path(directory, before.segment).write_bytes(held)
    again = JournalWriter.open(tmp_path, 0, run_id="r", segment_bytes=SEGMENT)
    assert again.end.segment == before.segment + 1
    fill(again, 26, 2)
    again.close()
    reader = JournalReader(directory)
    assert numbers(reader)[-3:] == [25, 26, 27]
    assert reader.damage == []


def test_a_torn_frame_in_a_recycled_segment_is_told_from_its_earlier_life(tmp_path: Path) -> None:
    journal, directory = recycled(tmp_path)
    start = journal.end.offset
    fill(journal, 25, 1)
    path = segment_path(directory, journal.end.segment)
    journal.close()
    with path.open("r+b") as file:
        file.seek(start + 40)
        file.write(b"torn")
    again = JournalWriter.open(tmp_path, 0, run_id="r", segment_bytes=SEGMENT)
    fill(again, 26, 1)
    again.close()
    reader = JournalReader(directory)
    assert numbers(reader)[-2:] == [24, 26]
    assert [(damage.path, damage.offset) for damage in reader.damage] == [(path, start)]


def test_a_reader_whose_segment_is_written_over_says_that_it_is_gone(tmp_path: Path) -> None:
    directory = journal_dir(tmp_path, 0)
    journal = JournalWriter.open(tmp_path, 0, run_id="r", segment_bytes=SEGMENT)
    fill(journal, 0, 20)
    reader = JournalReader(directory)
    reader.read(max_frames=2)
    assert reader.position.segment == 1
    give_back(directory, 1)
    fill(journal, 20, 12)
    with pytest.raises(Unavailable, match="is gone"):
        numbers(reader)
    journal.close()


def test_spares_are_few(tmp_path: Path) -> None:
    directory = journal_dir(tmp_path, 0)
    journal = JournalWriter.open(tmp_path, 0, run_id="r", segment_bytes=SEGMENT)
    fill(journal, 0, 60)
    for segment in segments(directory)[:-1]:
        give_back(directory, segment)
    assert len(list(directory.glob("spare-*"))) == SPARES_MAX
    fill(journal, 60, 60)
    assert list(directory.glob("spare-*")) == []
    journal.close()
    assert numbers(JournalReader(directory, Position(segments(directory)[0], 0)))[-1] == 119
