"""The decoder: the journal's calls, sessions and samples are in the dataset, once, whatever dies when."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from forge.proxy.recording.decoder import Decoder
from forge.storage import checkpoint
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.errors import Unavailable
from forge.storage.journal import journal_dir, segment_path, segments
from forge.storage.records import Call
from tests.faults.soak import LONG, rounds
from tests.storage.frames_kit import Kit, Turn, story

pytestmark = pytest.mark.process

Snapshot = dict[str, list[dict[str, Any]]]


def snapshot(data: Path) -> Snapshot:
    """Every part's name and rows."""
    parts = [p for table in ("calls", "sessions", "samples") for p in sorted((data / table).rglob("*.parquet"))]
    return {str(p.relative_to(data)): pq.ParquetFile(p).read().to_pylist() for p in parts}


def decode(data: Path, **options: Any) -> None:
    decoder = Decoder(data, **options)
    try:
        decoder.catch_up()
    finally:
        decoder.close()


def matches(call: Call, turn: Turn) -> bool:
    return (
        call.prompt_ids.tolist() == turn.prompt_ids
        and call.output_ids.tolist() == turn.output_ids
        and call.output_log_probs.tolist() == pytest.approx(turn.log_probs)
        and msgspec.json.decode(call.messages) == turn.messages
    )


def check(kit: Kit) -> None:
    """Every call of the kit is one row, exact, and every finished session has its samples."""
    dataset = Dataset(kit.data)
    turns = {turn.call_id: turn for turns in kit.turns.values() for turn in turns}
    calls = list(dataset.calls(kit.run_id))
    assert sorted(c.call_id for c in calls) == sorted(turns)
    assert all(matches(call, turns[call.call_id]) for call in calls)
    assert all(call.trainable for call in calls), [c.untrainable_reason for c in calls]
    found = {s.session_id: (s.revision, s.reward) for s in dataset.sessions(kit.run_id)}
    assert found == {s.session_id: (s.revision, s.reward) for s in kit.sessions.values()}
    trained: dict[str, int] = {}
    for sample in dataset.samples(kit.run_id):
        trained[sample.session_id] = trained.get(sample.session_id, 0) + int(sample.response_mask.sum())
        assert sample.reward == kit.sessions[sample.session_id].reward
    assert trained == {s: sum(len(t.output_ids) for t in turns) for s, turns in kit.turns.items()}
    assert dataset.damaged == []


def test_calls_sessions_and_samples_come_from_frames(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    kit.close()
    decode(tmp_path)
    check(kit)
    names = [p.name for p in sorted((tmp_path / "calls").rglob("*.parquet"))]
    assert all(name.startswith("part-00-000001-00000001_") for name in names)
    calls = list(Dataset(tmp_path).calls())
    assert sum(c.join == "exact" for c in calls) == 10
    assert all(c.delivered for c in calls)


def test_decoding_step_by_step_gives_the_same_as_at_once(tmp_path: Path) -> None:
    kit, decoder = Kit(tmp_path / "a"), Decoder(tmp_path / "a")
    shadow = Kit(tmp_path / "b")
    for each in (kit, shadow):
        each.open_session("s00000000001")
    last: Turn | None = None
    for number in range(6):
        last = kit.call("s00000000001", parent=last, stream=bool(number % 2))
        shadow.call(
            "s00000000001", parent=shadow.turns["s00000000001"][-1] if number else None, stream=bool(number % 2)
        )
        kit.cut()
        shadow.cut()
        decoder.catch_up()
        assert len(list(Dataset(kit.data).calls())) == number + 1
    for each in (kit, shadow):
        each.close_session("s00000000001", reward=1.0)
        each.cut()
        each.close()
    decoder.catch_up()
    decoder.close()
    decode(shadow.data)
    assert snapshot(kit.data) == snapshot(shadow.data)


WAYS = [
    [
        "recipe-written",
        "interval:2",
        "calls-written:2",
        "calls-renamed:2",
        "sessions-written",
        "sessions-renamed",
        "samples-written",
        "samples-renamed",
        "checkpoint-written",
        "checkpoint-renamed",
    ],
    ["interval:3", "segment-deleted"],
]
"""Points where it dies, one after the other; at the last one of each all is decoded."""
_DIE_AT_EACH = """
import os, sys
from pathlib import Path
from forge.proxy.recording.decoder import Decoder
from forge.storage import crash
for line in sys.stdin:
    data, point = line.split()
    child = os.fork()
    if child == 0:
        crash.arm(point)
        Decoder(Path(data), keep_bytes=0).catch_up()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("points", WAYS, ids=lambda points: points[-1])
def test_killed_at_every_point_in_turn_it_gives_the_same_files_and_rows(tmp_path: Path, points: list[str]) -> None:
    line = [sys.executable, "-c", _DIE_AT_EACH]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        for number in range(rounds(5, 100)):
            _die_at_each(tmp_path / str(number), points, child, seed=number)
            shutil.rmtree(tmp_path / str(number))


def _die_at_each(tmp_path: Path, points: list[str], child: subprocess.Popen[str], seed: int) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    kit = Kit(tmp_path / "a", segment_bytes=10_000, seed=seed)
    story(kit, sessions=2, turns=2)
    kit.close()
    again = tmp_path / "b"
    shutil.copytree(tmp_path / "a" / "journal", again / "journal")
    decode(kit.data)
    for point in points:
        child.stdin.write(f"{again} {point}\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"{-signal.SIGKILL}\n", point
        list(Dataset(again).calls())
    decode(again)
    assert snapshot(again) == snapshot(kit.data)
    assert not list(again.rglob(".*.tmp"))
    check(kit)


def test_a_chain_that_fell_out_of_memory_goes_on_the_same(tmp_path: Path) -> None:
    kit = Kit(tmp_path / "a")
    story(kit, sessions=3, turns=8)
    kit.close()
    shutil.copytree(kit.data / "journal", tmp_path / "b" / "journal")
    decode(kit.data)
    decode(tmp_path / "b", chain_bytes=0)
    assert snapshot(tmp_path / "b") == snapshot(kit.data)


def test_calls_open_across_cuts_and_restarts(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    slow = kit.next_turn("s00000000001")
    kit.begin("s00000000001", slow, stream=True)
    for _ in range(3):
        kit.call("s00000000001")
        kit.cut()
        decode(tmp_path)
    kit.finish(slow, stream=True)
    kit.close_session("s00000000001", reward=0.25)
    kit.cut()
    kit.close()
    decode(tmp_path)
    check(kit)


def test_a_dead_proxys_calls_become_interrupted_rows(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    kit.call("s00000000001")
    kit.cut()
    dead = kit.next_turn("s00000000001")
    kit.begin("s00000000001", dead)
    done = kit.call("s00000000001")
    kit.close()
    decoder = Decoder(tmp_path)
    decoder.catch_up()
    assert len(list(Dataset(tmp_path).calls())) == 1
    assert decoder.seal()
    decoder.catch_up()
    assert not decoder.seal()
    rows = {c.call_id: c for c in Dataset(tmp_path).calls()}
    assert rows[dead.call_id].status == "interrupted"
    assert not rows[dead.call_id].trainable
    assert rows[done.call_id].status == "ok"
    assert len(rows) == 3
    decoder.close()


def test_a_living_writer_is_not_sealed(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    kit.call("s00000000001")
    decoder = Decoder(tmp_path)
    decoder.catch_up()
    assert not decoder.seal()
    kit.close()
    decoder.close()


def test_one_decoder_per_data_directory(tmp_path: Path) -> None:
    decoder = Decoder(tmp_path)
    with pytest.raises(Unavailable, match=f"is being decoded by pid {os.getpid()}"):
        Decoder(tmp_path)
    decoder.close()
    Decoder(tmp_path).close()


def test_a_second_grade_changes_the_rows_where_they_are(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    for name in ("s00000000001", "s00000000002"):
        kit.open_session(name)
        kit.call(name)
        kit.close_session(name, reward=0.0)
    kit.cut()
    decode(tmp_path)
    before = snapshot(tmp_path)
    kit.reward("s00000000001", 1.0)
    kit.cut()
    kit.close()
    decode(tmp_path)
    decode(tmp_path)
    check(kit)
    after = snapshot(tmp_path)
    assert [n for n in after if n.startswith("samples")] == [n for n in before if n.startswith("samples")]


def test_two_writers_and_two_runs(tmp_path: Path) -> None:
    kits = [Kit(tmp_path, run_id=f"run-{i}", writer=i, seed=i) for i in range(2)]
    for kit in kits:
        story(kit, turns=2)
        kit.close()
    decode(tmp_path)
    for kit in kits:
        check(kit)
    assert Dataset(tmp_path).runs() == ["run-0", "run-1"]
    with_catalog = Catalog(tmp_path)
    assert [(r["run_id"], r["sessions"], r["calls"]) for r in with_catalog.runs()] == [("run-0", 3, 7), ("run-1", 3, 7)]
    with_catalog.close()


def test_decoded_segments_beyond_what_is_kept_are_deleted(tmp_path: Path) -> None:
    kit = Kit(tmp_path, segment_bytes=20_000)
    story(kit, sessions=4, turns=6)
    assert len(segments(journal_dir(tmp_path, 0))) > 4
    decode(tmp_path, keep_bytes=30_000)
    left = segments(journal_dir(tmp_path, 0))
    assert 2 <= len(left) <= 3
    kit.close()
    decode(tmp_path, keep_bytes=30_000)
    check(kit)


def test_a_rebuild_makes_the_same_files_from_the_journal(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    story(kit)
    kit.close()
    decode(tmp_path)
    wanted = snapshot(tmp_path)
    (victim, *_), (other, *_) = (
        sorted((tmp_path / "calls").rglob("*.parquet")),
        sorted((tmp_path / "samples").rglob("*.parquet")),
    )
    victim.write_bytes(b"broken")
    stale = other.with_name("part-00-000001-00000009_0000000000-00000009_0000000001.parquet")
    shutil.copy(other, stale)
    decoder = Decoder(tmp_path)
    decoder.start_over()
    decoder.catch_up()
    decoder.close()
    assert snapshot(tmp_path) == wanted
    check(kit)


def test_a_rebuild_without_its_segments_is_refused_and_names_them(tmp_path: Path) -> None:
    kit = Kit(tmp_path, segment_bytes=20_000)
    story(kit, sessions=4, turns=6)
    kit.close()
    decode(tmp_path)
    wanted = snapshot(tmp_path)
    segment_path(journal_dir(tmp_path, 0), 1).unlink()
    decoder = Decoder(tmp_path)
    with pytest.raises(Unavailable, match=r"no longer holds: .*00000001\.seg"):
        decoder.start_over()
    decoder.close()
    shutil.rmtree(tmp_path / "journal")
    Kit(tmp_path).close()
    decoder = Decoder(tmp_path)
    with pytest.raises(Unavailable, match=r"the frames of .*part-00-000001-.* and \d+ more"):
        decoder.start_over()
    decoder.close()
    assert snapshot(tmp_path) == wanted


def test_a_broken_catalog_does_not_stop_decoding_and_catches_up(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    (tmp_path / "catalog.db").mkdir()
    story(kit)
    kit.close()
    decode(tmp_path)
    check(kit)
    assert checkpoint.load(tmp_path).catalog_behind
    (tmp_path / "catalog.db").rmdir()
    kit = Kit(tmp_path, seed=1)
    kit.open_session("s99999999999")
    kit.cut()
    kit.close()
    decode(tmp_path)
    catalog = Catalog(tmp_path)
    assert catalog.runs()[0]["sessions"] == 4
    catalog.close()
