"""The bench runs, and says of every bar what its figures say; what a figure is, is no matter here."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from bench import process, report, table, wire
from bench.__main__ import PARTS, main
from bench.bars import AIM, BARS, MISSED, MUST, UNKNOWN, Bar
from bench.figures import Figure, Figures, of_rounds
from bench.trajectories import Plan, make
from bench.words import Words

SMALL = Plan(sessions=2, calls=3, start=200, output=20, between=40)


@pytest.mark.parametrize(
    ("at_least", "value", "verdict"),
    [
        (False, 2.0, AIM),
        (False, 2.1, MUST),
        (False, 4.1, MISSED),
        (True, 4.0, AIM),
        (True, 3.9, MUST),
        (True, 1.9, MISSED),
    ],
)
def test_a_bar_is_held_by_the_median(at_least: bool, value: float, verdict: str) -> None:
    must, aim = (2.0, 4.0) if at_least else (4.0, 2.0)
    bar = Bar("path", "cost", must, aim, at_least)
    assert bar.verdict(Figure(value, 0.0, 99.0, 5)) == verdict
    assert bar.verdict(None) == UNKNOWN


def test_ratios_are_of_the_same_round() -> None:
    figure = of_rounds([10, 40, 30], [5, 10, 10])
    assert figure == Figure(3.0, 2.0, 4.0, 3)


def test_every_bar_belongs_to_a_part_and_aims_beyond_its_must() -> None:
    for bar in BARS:
        assert bar.part in PARTS
        assert bar.aim >= bar.must if bar.at_least else bar.aim <= bar.must


def test_the_table_says_what_does_not_hold_and_what_was_not_measured() -> None:
    figures = Figures({"token bytes / f32 limit": Figure.exact(1.3), "token bytes / JSON lines": Figure.exact(0.01)})
    said = table.text({"storage": figures})
    assert "1.3" in said
    summary = table.summary({"storage": figures})
    assert summary.startswith("1 of 3 bars hold, 1 of them with their aim.")
    assert "Do not hold: token bytes / f32 limit." in summary
    assert summary.partition("Not measured")[2] == ": decode / naive."


def test_a_part_that_was_not_run_again_stays_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    report.write(page, {"storage": Figures({"decode / naive": Figure.exact(0.15)}, ["no row for nginx: why"])})
    report.write(page, {"path": Figures({"ours / nginx, 2k+200": Figure(3.0, 2.5, 3.5, 5)})})
    said = page.read_text()
    assert "| storage | decode / naive | ≤ 0.2 | 0.1 | 0.15 | - | must |" in said
    assert "| path | ours / nginx, 2k+200 | ≤ 6 | 3.3 | 3 | 2.5 .. 3.5 (5) | aim |" in said
    assert "- no row for nginx: why" in said
    assert set(json.loads(page.with_suffix(".json").read_text())) == {"storage", "path"}


def test_sessions_grow_by_what_was_said_and_the_limit_counts_each_id_once() -> None:
    made = make(SMALL)
    first, later = (made.exchanges[number] for number in (0, 2))
    assert first.session == later.session == 0
    begun = np.concatenate((first.prompt_ids, first.output_ids))
    assert np.array_equal(later.prompt_ids[: len(begun)], begun)
    outputs = sum(len(e.output_ids) for e in made.exchanges)
    assert made.new_ids == sum(len(e.prompt_ids) + len(e.output_ids) for e in made.exchanges[-2:])
    assert made.limit == pytest.approx(made.new_ids * Words(1).bits_per_id / 8 + 4 * outputs)
    assert json.loads(first.answer)["choices"][0]["token_ids"] == first.output_ids.tolist()
    assert [e.request for e in make(SMALL).exchanges] == [e.request for e in made.exchanges]


def test_a_streamed_token_carries_a_stamp_and_usage_comes_last() -> None:
    words = Words(1)
    events = wire.stream(words, words.ids(5), words.ids(3), words.log_probs(3)).split(b"\n\n")
    assert [wire.STAMP.encode() in event for event in events[:4]] == [False, True, True, True]
    assert b'"choices":[]' in events[-3]
    assert events[-2] == b"data: [DONE]"


def test_the_cpu_clock_of_a_process_counts_its_work() -> None:
    before = process.cpu_ns([os.getpid()])
    sum(range(1_000_000))
    assert process.cpu_ns([os.getpid()]) > before
    assert process.cpu_ns([2**22 + 1]) == 0


@pytest.mark.process
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_bench_runs(part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "benchmarks.md"
    arguments = ["--quick", "--only", part, "--targets", "direct,nginx,ours", "--scratch", str(tmp_path)]
    assert main([*arguments, "--write", str(page)]) == 0
    figures = Figures.from_json(json.loads(page.with_suffix(".json").read_text())[part]).by_name
    assert figures
    assert all(np.isfinite(figure.value) for figure in figures.values())
    assert "bars hold" in capsys.readouterr().out
