"""The journal: what is appended is read back; two writers, dead calls, rotation, waiting for the disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.storage.errors import Unavailable
from forge.storage.frames import AnyFrame, Boot, Close, Cut, Data, Open
from forge.storage.journal import (
    START,
    JournalFull,
    JournalReader,
    JournalWriter,
    Position,
    journal_dir,
    packed,
    segment_path,
    segments,
    unpacked,
)
from forge.storage.journal_flush import Flusher


def opened(call_id: str, request: bytes = b"{}") -> tuple[Open, bytes]:
    frame = Open(
        call_id=call_id,
        session_id="s",
        run_id="r",
        boot=1,
        mono_us=1,
        writer=0,
        wall_us=1,
        dialect="chat",
        path="/v1/chat/completions",
        stream=False,
        request_len=len(request),
    )
    return frame, request


def writer(data: Path, **options: object) -> JournalWriter:
    return JournalWriter.open(data, 0, run_id="r", **options)  # type: ignore[arg-type]


def frames(data: Path) -> list[tuple[AnyFrame, bytes]]:
    reader = JournalReader(journal_dir(data, 0))
    found = []
    while entries := reader.read():
        found += [(entry.frame, entry.blobs) for entry in entries]
    reader.close()
    return found


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    first, body = opened("c1", b'{"a":1}')
    journal.append(first, body, b"sent")
    journal.append_many([(Data(call_id="c1"), (b"x", memoryview(b"yz"))), (Close(call_id="c1", status="ok"), ())])
    journal.close()
    boot, *rest = frames(tmp_path)
    assert isinstance(boot[0], Boot)
    assert boot[0].boot == 1
    assert rest == [
        (first, b'{"a":1}sent'),
        (Data(call_id="c1"), b"xyz"),
        (Close(call_id="c1", status="ok"), b""),
    ]


def test_a_reader_follows_a_living_writer_across_segments(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=2000)
    reader = JournalReader(journal_dir(tmp_path, 0))
    seen: list[str] = []
    for number in range(40):
        journal.append(*opened(f"c{number}", b"q" * 300))
        seen += [e.frame.call_id for e in reader.read() if isinstance(e.frame, Open)]
        assert reader.read() == []
    journal.close()
    assert seen == [f"c{number}" for number in range(40)]
    assert len(segments(journal.directory)) > 5
    assert reader.damage == []


def test_a_reader_goes_on_from_any_place(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=1500)
    for number in range(20):
        journal.append(*opened(f"c{number}", b"q" * 200))
    journal.close()
    entries = JournalReader(journal_dir(tmp_path, 0)).read()
    assert [e.position for e in entries] == sorted(e.position for e in entries)
    for index, entry in enumerate(entries):
        again = JournalReader(journal_dir(tmp_path, 0), entry.end).read()
        assert [e.position for e in again] == [e.position for e in entries[index + 1 :]]


def test_reads_are_bounded_and_a_long_frame_comes_whole(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    for number in range(10):
        journal.append(*opened(f"c{number}", b"q" * 1000))
    journal.append(*opened("long", b"l" * 9_000_000))
    journal.close()
    reader = JournalReader(journal_dir(tmp_path, 0))
    assert len(reader.read(max_frames=3)) == 3
    assert len(reader.read(max_bytes=2500)) in (2, 3)
    rest: list[bytes] = []
    while entries := reader.read():
        rest += [e.blobs for e in entries]
    assert rest[-1] == b"l" * 9_000_000


def test_a_reader_before_the_first_segment_waits(tmp_path: Path) -> None:
    reader = JournalReader(journal_dir(tmp_path, 0))
    assert reader.read() == []
    assert reader.position == START
    writer(tmp_path).close()
    assert [type(e.frame) for e in reader.read()] == [Boot]


def test_a_deleted_segment_is_named(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=500)
    for number in range(10):
        journal.append(*opened(f"c{number}", b"q" * 300))
    journal.close()
    segment_path(journal.directory, 1).unlink()
    with pytest.raises(Unavailable, match=r"00000001\.seg is gone; the first one kept is 00000002"):
        JournalReader(journal.directory, Position(1, 100)).read()
    assert len(JournalReader(journal.directory).read()) < 10


def test_a_second_writer_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    with pytest.raises(Unavailable, match=f"is in use by pid {os.getpid()}"):
        writer(tmp_path)
    code = (
        "import sys; from pathlib import Path; from forge.storage.journal import JournalWriter\n"
        "JournalWriter.open(Path(sys.argv[1]), 0, run_id='r')"
    )
    other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert f"is in use by pid {os.getpid()}" in other.stderr
    JournalWriter.open(tmp_path, 1, run_id="r").close()
    journal.close()
    writer(tmp_path).close()


def test_boots_are_counted_over_all_writers_and_survive_a_lost_journal(tmp_path: Path) -> None:
    boots = []
    for number in (0, 1, 0):
        journal = JournalWriter.open(tmp_path, number, run_id="r")
        boots.append(journal.boot)
        journal.close()
    assert boots == [1, 2, 3]
    part = tmp_path / "calls" / "run_id=r" / "part-00-000017-00000001_0000000066-00000001_0000000142.parquet"
    part.parent.mkdir(parents=True)
    part.touch()
    (tmp_path / "journal" / "boot").unlink()
    journal = writer(tmp_path)
    assert journal.boot == 18
    journal.close()


def test_dead_calls_are_closed_at_the_next_start_also_from_earlier_segments(tmp_path: Path) -> None:
    journal = writer(tmp_path, segment_bytes=1000)
    journal.append(*opened("dead-early", b"q" * 900))
    for number in range(6):
        journal.append(*opened(f"c{number}", b"q" * 900))
        journal.append(Close(call_id=f"c{number}", status="ok"))
    journal.append(*opened("dead-late"))
    journal.close()
    again = writer(tmp_path, segment_bytes=1000)
    assert again.interrupted == ["dead-early", "dead-late"]
    again.close()
    last = [frame for frame, _ in frames(tmp_path)][-3:]
    assert last[:2] == [
        Close(call_id="dead-early", status="interrupted"),
        Close(call_id="dead-late", status="interrupted"),
    ]
    assert isinstance(last[2], Boot)
    third = writer(tmp_path)
    assert third.interrupted == []
    third.close()


def test_bytes_since_cut(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    before = journal.bytes_since_cut
    journal.append(*opened("c1", b"q" * 1000))
    assert journal.bytes_since_cut - before > 1000
    journal.append(Cut(number=1, wall_us=1))
    assert journal.bytes_since_cut == 0
    journal.close()


async def test_durable_waits_for_the_disk_and_lag_falls_to_nothing(tmp_path: Path) -> None:
    journal = writer(tmp_path, durability="disk", segment_bytes=4000)
    for number in range(20):
        position = journal.append(*opened(f"c{number}", b"q" * 1000))
        await journal.durable(position)
        assert journal.flush_lag_s == 0.0
    journal.close()


async def test_durability_process_does_not_wait(tmp_path: Path) -> None:
    journal = writer(tmp_path)
    position = journal.append(*opened("c1"))
    await journal.durable(position)
    journal.close()
    assert journal.flush_lag_s == 0.0


def test_a_frame_beyond_the_limit_is_refused_whole(tmp_path: Path) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 31

    journal = writer(tmp_path)
    end = journal.end
    with pytest.raises(ValueError, match="longer than"):
        journal.append(Data(call_id="c1"), Huge(b"x"))
    assert journal.end == end
    journal.close()


async def test_what_the_disk_refused_is_never_waited_for_nor_called_flushed(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()  # has no disk behind it: every flush of it fails
    good = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    flusher = Flusher("test-flush", tmp_path)
    lost, kept = Position(1, 10), Position(1, 20)
    try:
        async with asyncio.timeout(10):
            flusher.wrote(write_end, lost)
            with pytest.raises(JournalFull):
                await flusher.wait(lost)
            with pytest.raises(JournalFull):
                await flusher.wait(lost)
            flusher.wrote(good, kept)
            await flusher.wait(kept)
            with pytest.raises(JournalFull):
                await flusher.wait(lost)
    finally:
        flusher.close()
        for fd in (read_end, write_end, good):
            os.close(fd)


async def test_what_is_in_a_file_is_on_disk_once_its_name_is(tmp_path: Path) -> None:
    folder, fd = tmp_path / "journal", os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    flusher = Flusher("test-flush", folder)
    try:
        async with asyncio.timeout(10):
            flusher.begin(-1)
            flusher.wrote(fd, Position(1, 10))
            with pytest.raises(JournalFull):
                await flusher.wait(Position(1, 10))
            folder.mkdir()
            flusher.wrote(fd, Position(1, 20))
            await flusher.wait(Position(1, 20))
    finally:
        flusher.close()
        os.close(fd)


async def test_a_segment_that_is_gone_on_with_is_on_disk_once_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who began it may have been killed before the disk had its name."""
    JournalWriter.open(tmp_path, 0, run_id="r").close()
    flushed: list[Path] = []
    monkeypatch.setattr("forge.storage.journal_flush.fsync_dir", flushed.append)
    journal = JournalWriter.open(tmp_path, 0, run_id="r", durability="disk")
    try:
        assert journal.end.segment == 1
        await journal.durable(journal.end)
        assert flushed == [journal.directory]
    finally:
        journal.close()


async def test_an_append_that_begins_a_segment_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    journal = JournalWriter.open(tmp_path, 0, run_id="r", durability="disk", segment_bytes=64)
    try:
        await journal.durable(journal.end)
        monkeypatch.setattr("forge.storage.journal_flush.fsync_dir", lambda _: slow.wait(10))
        places = [journal.append(Data(call_id="c1"), b"x" * 64) for _ in range(2)]
        assert len({place.segment for place in places}) == 2
        waiting = asyncio.ensure_future(journal.durable(places[-1]))
        await asyncio.wait([waiting], timeout=0.1)
        assert not waiting.done()
        slow.set()
        async with asyncio.timeout(10):
            await waiting
    finally:
        slow.set()
        journal.close()


@given(st.lists(st.tuples(st.integers(0, (1 << 24) - 1), st.integers(0, (1 << 40) - 1)), min_size=2, max_size=2))
def test_a_packed_position_is_the_same_position(places: list[tuple[int, int]]) -> None:
    held = array("Q", [packed(*place) for place in places])
    assert [unpacked(place) for place in held] == places
    assert (held[0] < held[1]) == (places[0] < places[1])
