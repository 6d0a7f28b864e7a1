"""Torn tails, flipped bits, killed writers, full disks: the valid prefix is kept, nothing crashes, nothing doubles."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.frames import Boot, Close, Data
from forge.storage.journal import JournalFull, JournalReader, JournalWriter, journal_dir, segment_path

pytestmark = pytest.mark.process


def journal_of(data: Path, sizes: list[int]) -> list[tuple[int, int]]:
    """A journal of data frames; gives (start, end) of each in the only segment."""
    journal = JournalWriter.open(data, 0, run_id="r")
    bounds = []
    for number, size in enumerate(sizes):
        start = journal.end.offset
        journal.append(Data(call_id=f"c{number}"), bytes([number % 256]) * size)
        bounds.append((start, journal.end.offset))
    journal.close()
    return bounds


def numbers(data: Path) -> list[int]:
    reader = JournalReader(journal_dir(data, 0))
    found: list[int] = []
    while entries := reader.read(max_frames=3):
        found += [int(e.frame.call_id[1:]) for e in entries if isinstance(e.frame, Data)]
    reader.close()
    return found


FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where no flush takes time."""
SIZES = st.lists(st.integers(0, 400), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_a_torn_tail_keeps_every_whole_frame_and_is_written_behind(sizes: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        root = Path(folder)
        bounds = journal_of(root, sizes)
        cut = data.draw(st.integers(bounds[0][0], bounds[-1][1]))
        garbage = data.draw(st.binary(max_size=40))
        with segment_path(journal_dir(root, 0), 1).open("r+b") as file:
            file.truncate(cut)
            file.seek(cut)
            file.write(garbage)
        whole = [n for n, (_, end) in enumerate(bounds) if end <= cut]
        assert numbers(root)[: len(whole)] == whole
        before = numbers(root)
        journal = JournalWriter.open(root, 0, run_id="r")
        journal.append(Data(call_id="c99"), b"new")
        journal.close()
        assert numbers(root) == [*before, 99]


@settings(max_examples=150, deadline=None)
@given(sizes=SIZES, data=st.data())
def test_flipped_bits_lose_only_what_they_touch(sizes: list[int], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        root = Path(folder)
        bounds = journal_of(root, sizes)
        path = segment_path(journal_dir(root, 0), 1)
        boot_at = JournalReader(journal_dir(root, 0)).read()[0].position.offset
        raw = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(raw)
        journal = JournalWriter.open(root, 0, run_id="r")
        journal.append(Data(call_id="c99"), b"new")
        journal.close()
        found = numbers(root)
        touched = next((n for n, (start, end) in enumerate(bounds) if start <= at < end), None)
        before = [n for n in range(len(bounds)) if touched is None or n < touched]
        if at < 4 or boot_at <= at < boot_at + 4:
            before = []  # The length of a frame before ours: where ours begin is not known any more.
        assert found[-1] == 99
        assert found[: len(before)] == before
        assert found == sorted(set(found))
        if touched is not None and at >= bounds[touched][0] + 4:
            assert found == [n for n in range(len(bounds)) if n != touched] + [99]


@settings(max_examples=80, deadline=None)
@given(garbage=st.binary(max_size=3000))
def test_any_file_is_read_without_a_crash(garbage: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        root = Path(folder)
        directory = journal_dir(root, 0)
        directory.mkdir(parents=True)
        segment_path(directory, 1).write_bytes(garbage)
        assert numbers(root) == []
        journal = JournalWriter.open(root, 0, run_id="r")
        journal.append(Data(call_id="c7"))
        journal.close()
        assert numbers(root) == [7]


def test_bytes_of_another_life_of_the_file_never_read_as_frames(tmp_path: Path) -> None:
    journal_of(tmp_path, [50] * 5)
    first = segment_path(journal_dir(tmp_path, 0), 1)
    first.rename(segment_path(journal_dir(tmp_path, 0), 2))
    assert numbers(tmp_path) == []


_WRITE_AND_SAY = """
import sys
from pathlib import Path
from forge.storage.frames import Close, Data
from forge.storage.journal import JournalWriter
journal = JournalWriter.open(Path(sys.argv[1]), 0, run_id="r", segment_bytes=200_000)
number = int(sys.argv[2])
while True:
    data = (Data(call_id=f"c{number}"), (b"x" * (number % 3000),))
    journal.append_many([data, (Close(call_id="x", status="ok"), ())])
    print(number, flush=True)
    number += 1
"""


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    acknowledged = -1
    for round_ in range(4):
        command = [sys.executable, "-c", _WRITE_AND_SAY, str(tmp_path), str(acknowledged + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                acknowledged = int(line)
                if acknowledged % 400 == 399 - round_:
                    child.kill()
                    break
            rest = [int(line) for line in child.stdout.read().split()]
            acknowledged = max([acknowledged, *rest])
            assert child.wait(timeout=30) == -signal.SIGKILL
    found = numbers(tmp_path)
    assert set(range(acknowledged + 1)) <= set(found)
    # A frame written but not said belongs to the number that the next round writes again: twice at most per kill.
    assert len(found) - len(set(found)) <= 4


_FILL = """
import resource, signal, sys
from pathlib import Path
from forge.storage.frames import Close, Data
from forge.storage.journal import JournalFull, JournalReader, JournalWriter, journal_dir
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
data = Path(sys.argv[1])
journal = JournalWriter.open(data, 0, run_id="r")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
number = 0
while True:
    try:
        pair = [(Data(call_id=f"c{number + i}"), (b"x" * 700,)) for i in (0, 1)]
        journal.append_many(pair)
    except JournalFull as error:
        assert "cannot be written" in error.message, error.message
        number += error.written
        break
    number += 2
for _ in range(3):
    try:
        journal.append(Data(call_id="never"), b"x" * 5000)
        raise SystemExit("it should not have fit")
    except JournalFull as error:
        assert error.written == 0
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append(Data(call_id=f"c{number}"), b"z")
journal.close()
reader = JournalReader(journal_dir(data, 0))
found = [e.frame.call_id for e in reader.read() if isinstance(e.frame, Data)]
assert found == [f"c{n}" for n in range(number + 1)], (found, number)
assert reader.damage == []
print("ok", number)
"""


def test_a_full_disk_is_said_and_recording_goes_on_when_there_is_room(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FILL, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("ok"), done.stderr


def test_no_space_for_a_new_segment_either(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(1)
    journal = JournalWriter.open(disk, 0, run_id="r", segment_bytes=100_000)
    ballast = disk / "ballast"
    ballast.write_bytes(b"b" * 400_000)
    written = 0
    try:
        while written < 100:
            journal.append(Data(call_id=f"c{written}"), b"x" * 30_000)
            written += 1
    except JournalFull as error:
        hint = error.hint
    assert "free disk space" in hint
    assert 0 < written < 100
    for _ in range(3):
        with pytest.raises(JournalFull, match="cannot be"):
            journal.append(Data(call_id="never"), b"x" * 200_000)
    ballast.unlink()
    journal.append(Data(call_id=f"c{written}"), b"after")
    journal.close()
    assert numbers(disk) == list(range(written + 1))


_NTH = """
import sys
from pathlib import Path
from forge.storage.frames import Data
from forge.storage.journal import JournalFull, JournalWriter
journal = JournalWriter.open(Path(sys.argv[1]), 0, run_id="r", segment_bytes=600)
for number in range(8):
    try:
        journal.append(Data(call_id=f"c{number}"), b"x" * 200)
        print(number, flush=True)
    except JournalFull:
        print("full", flush=True)
journal.close()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace to make system calls fail")
@pytest.mark.parametrize("call", ["pwritev2", "fdatasync", "pwrite64"])
@pytest.mark.parametrize("nth", [1, 3])
def test_the_nth_system_call_fails(tmp_path: Path, call: str, nth: int) -> None:
    """What was said to be written is there, whatever fails when."""
    trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e"]
    inject = f"inject={call}:error=ENOSPC:when={nth}"
    command = [*trace, inject, sys.executable, "-c", _NTH, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine does not allow ptrace")
    said = [int(word) for word in done.stdout.split() if word.isdigit()]
    assert numbers(tmp_path) == said
    if done.returncode:  # The boot itself could not be written.
        assert "Unavailable" in done.stderr or "JournalFull" in done.stderr
        assert said == []
    elif call == "pwritev2":
        assert "full" in done.stdout
    journal = JournalWriter.open(tmp_path, 0, run_id="r")
    journal.close()
    entries = JournalReader(journal_dir(tmp_path, 0)).read()
    assert isinstance(entries[-1].frame, Boot)
    assert not any(isinstance(e.frame, Close) for e in entries)
