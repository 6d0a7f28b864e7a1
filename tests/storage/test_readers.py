"""Reading a data directory at any moment of its life, and decoding one whose disk or journal is bad."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.journal import journal_dir, segment_path
from forge.storage.sql import views
from tests.faults.soak import LONG, rounds
from tests.storage.frames_kit import Kit, story
from tests.storage.test_decoder import check, decode, snapshot


@pytest.mark.timeout(LONG)
def test_readers_see_whole_files_while_the_decoder_writes(tmp_path: Path) -> None:
    for number in range(rounds(1, 40)):
        _read_meanwhile(tmp_path / str(number))


def _read_meanwhile(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit, sessions=4, turns=12)
    kit.close()
    failures: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            decode(tmp_path)
            decoder = Decoder(tmp_path)
            decoder.start_over()
            decoder.catch_up()
            decoder.close()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    counts: list[int] = []
    wholes: dict[str, tuple[list[int], str]] = {}
    glob = str(tmp_path / "calls" / "**" / "*.parquet")
    while not done.is_set():
        dataset = Dataset(tmp_path)
        counts.append(len(list(dataset.calls())))
        dataset.sessions()
        list(dataset.samples())
        assert dataset.damaged == []
        if counts[-1]:
            with duckdb.connect() as db:
                ((seen,),) = db.execute(f"SELECT count(*) FROM '{glob}'").fetchall()
                db.execute(views(tmp_path))
                rows = db.execute("SELECT call_id, prompt_ids, messages FROM calls").fetchall()
            assert seen >= counts[-1]
            assert len(rows) >= seen  # no row waits for a parent that is not there yet
            wholes.update({call_id: (ids, messages) for call_id, ids, messages in rows})
            assert pq.read_table(tmp_path / "calls").num_rows >= counts[-1]
    writer.join()
    assert failures == []
    known = {c.call_id: (c.prompt_ids.tolist(), c.messages) for c in Dataset(tmp_path).calls()}
    assert all(known[call_id] == whole for call_id, whole in wholes.items())
    assert wholes
    assert counts == sorted(counts)
    check(kit)


def test_a_full_disk_stops_the_decoder_only_until_there_is_room(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(2)
    kit = Kit(disk)
    story(kit, sessions=4, turns=8)
    kit.close()
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    decoder = Decoder(disk)
    ballast.write_bytes(b"b" * (free.f_bavail * free.f_frsize - 120_000))
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            decoder.catch_up()
    part_way = len(list(Dataset(disk).calls()))
    assert part_way < 33
    ballast.unlink()
    decoder.catch_up()
    decoder.close()
    check(kit)


def test_a_damaged_frame_costs_its_call_and_nothing_else(tmp_path: Path) -> None:
    kit = Kit(tmp_path, segment_bytes=30_000)
    story(kit, sessions=3, turns=6)
    kit.close()
    path = segment_path(journal_dir(tmp_path, 0), 1)
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"chatcmpl-c00001000002") + 30] ^= 1
    path.write_bytes(raw)
    decode(tmp_path)
    rows = {c.call_id: c for c in Dataset(tmp_path).calls()}
    assert len(rows) == 19
    assert [c for c, row in rows.items() if not row.trainable] == ["c00001000002"]


def test_an_empty_or_missing_directory_reads_as_empty(tmp_path: Path) -> None:
    for data in (tmp_path, tmp_path / "none"):
        dataset = Dataset(data)
        assert (dataset.runs(), list(dataset.calls()), dataset.sessions(), list(dataset.samples())) == ([], [], [], [])
    decode(tmp_path)
    assert snapshot(tmp_path) == {}
