"""What a run leaves: lines that survive, lines that are made again, the same in TensorBoard, and a live table."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from forge.trainer.advantage import select
from forge.trainer.config import Baseline
from forge.trainer.metrics import EVENTS, SESSIONS, Metrics, read
from forge.trainer.table import COLUMNS, LiveTable
from tests.report.test_report import STATS
from tests.trainer.conftest import sample


def steps(folder: Path, numbers: range, made: int = 0) -> None:
    rows = [sample("a", reward=1.0), sample("b", reward=0.0)]
    chosen = select(rows, version=0, max_staleness=0, baseline=Baseline.STD)
    with Metrics(folder, made) as metrics:
        for number in numbers:
            metrics.write(number, 0, 0, chosen, STATS)


def test_steps_that_are_made_again_are_written_once(tmp_path: Path) -> None:
    steps(tmp_path, range(1, 6))
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "lo')  # of a run that was killed while it wrote
    steps(tmp_path, range(4, 7), made=3)
    assert [line["step"] for line in read(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in read(tmp_path / SESSIONS)] == [n for n in range(1, 7) for _ in "ab"]


def test_the_event_file_holds_the_same_numbers(tmp_path: Path) -> None:
    """Read as TensorBoard does: length, masked checksums, protobuf."""
    from tensorboardX.proto.event_pb2 import Event

    steps(tmp_path, range(1, 3))
    (path,) = (tmp_path / EVENTS).iterdir()
    data, events = path.read_bytes(), []
    while data:
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    scalars = {(e.step, v.tag): v.simple_value for e in events for v in e.summary.value}
    line = read(tmp_path / "metrics.jsonl")[0]
    numbers = {k: v for k, v in line.items() if isinstance(v, int | float) and k not in ("step", "time")}
    for name, value in numbers.items():
        assert scalars[1, name] == pytest.approx(value, rel=1e-6)
        assert (2, name) in scalars


def test_a_terminal_shows_a_table_and_a_pipe_gets_lines(tmp_path: Path) -> None:
    steps(tmp_path, range(1, 2))
    (line,) = read(tmp_path / "metrics.jsonl")
    shown, piped = io.StringIO(), io.StringIO()
    with LiveTable(Console(file=shown, force_terminal=True, width=160)) as table:
        table.say("model here")
        table.say("step 1 runs")
        table.step(line)
    for name in COLUMNS:
        assert name in shown.getvalue()
    assert "0.500" in shown.getvalue()
    with LiveTable(Console(file=piped)) as table:
        table.say("model here")
        table.say("step 1 [runs]")
        table.step(line)
    assert piped.getvalue() == "model here\nstep 1 [runs]\n"
