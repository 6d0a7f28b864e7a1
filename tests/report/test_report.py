"""The page of a run: offline, whole, its curves told by its numbers, its links leading to what is there."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from forge.cli import build
from forge.report.chart import GREATEST, HEIGHT, WIDTH, chart
from forge.report.page import CURVES, write
from forge.storage.errors import BadInput
from forge.trainer.advantage import select
from forge.trainer.config import Baseline, StepStats
from forge.trainer.metrics import FILE, ROLLOUTS, SESSIONS, line_of, sessions_of
from tests.trainer.conftest import sample

STATS = StepStats(
    loss=0.1, grad_norm=1.0, tokens=6, tokens_read=14, seconds=0.5, entropy=1.2, ratio_mean=1.0, ratio_max=1.1,
    clip_low_fraction=0.0, clip_high_fraction=0.1, delta_log_prob_mean=1e-5, delta_log_prob_max=1e-4,
    kl_rollout_k1=1e-6, kl_rollout_k3=1e-6, perplexity_ratio=1.0, effective_share=1.0, corrected_fraction=0.0,
    kl_base=0.0,
)  # fmt: skip


def run(folder: Path, steps: int = 3) -> Path:
    """A run of one good and one bad session a step."""
    folder.mkdir(parents=True)
    lines, sessions = [], []
    for step in range(1, steps + 1):
        good = sample(f"good{step}", reward=1.0, task_id="<b>task</b>")
        rows = [good, sample(f"bad{step}", reward=0.0), sample("alone", group_id="g2")]
        chosen = select(rows, version=0, max_staleness=0, baseline=Baseline.STD)
        lines.append(line_of(step, step - 1, step, chosen, STATS))
        sessions += sessions_of(step, chosen)
    for name, values in ((FILE, lines), (SESSIONS, sessions)):
        (folder / name).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in values))
    return folder


def test_a_run_that_drew_its_own_sessions_shows_how_many_and_their_pass_rate(tmp_path: Path) -> None:
    folder = run(tmp_path / "train" / "1")
    assert "Pass rate" not in write(folder, tmp_path, tmp_path / "page.html").read_text()
    lines = [
        {"batch": n, "pass_rate": rate, "sessions": 8, "sessions_chosen": 4, "rewards_null": n}
        for n, rate in enumerate((0.25, None, 0.75))
    ]
    (folder / ROLLOUTS).write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
    text = write(folder, tmp_path, tmp_path / "page.html").read_text()
    for title in ("Pass rate, by batch", "Sessions, by batch"):
        assert f'aria-label="{title}"' in text


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_one_file_that_needs_no_other(tmp_path: Path) -> None:
    kept = tmp_path / "harness" / "r" / "good1"
    kept.mkdir(parents=True)
    page = write(run(tmp_path / "train" / "1"), tmp_path, tmp_path / "reports" / "page.html")
    text = page.read_text()
    seen = Seen()
    seen.feed(text)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in seen.tags}
    assert not re.search(r"https?:|url\(|@import", text)
    links = [attrs["href"] for tag, attrs in seen.tags if tag == "a"]
    assert len(links) == 1, "only what is there is linked"
    assert (page.parent / str(links[0])).resolve() == kept
    assert "&lt;b&gt;task&lt;/b&gt;" in text
    assert "3 steps, 6 sessions learned from, version 1 to 3" in text
    for title in ("Reward", "Length", "Entropy", "Staleness", "Throughput", "Groups", "Clipped share"):
        assert f'aria-label="{title}"' in text
    assert "fewer than two" in text


def test_every_curve_is_a_number_of_the_metrics() -> None:
    chosen = select([sample("a"), sample("b", reward=0.0)], version=0, max_staleness=0, baseline=Baseline.STD)
    line = line_of(1, 0, 0, chosen, STATS)
    assert not {key for curves in CURVES.values() for key in curves} - set(line)


def test_a_folder_without_a_step_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"step": 1')  # cut short
    with pytest.raises(BadInput, match=r"holds no metrics\.jsonl with a step in it"):
        write(tmp_path, tmp_path, tmp_path / "page.html")


def drawable(value: float | None) -> bool:
    return value is not None and abs(value) < GREATEST


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.one_of(st.none(), st.floats())), min_size=1, max_size=30))
def test_any_numbers_make_a_chart_within_its_frame(points: list[tuple[float, float | None]]) -> None:
    figure = chart("a < b", {"one": points})
    if not figure:
        assert not any(drawable(y) for _, y in points)
        return
    svg = ElementTree.fromstring(figure[figure.index("<svg") : figure.index("</svg>") + 6])
    drawn = [pair for line in svg.iter("polyline") for pair in line.attrib["points"].split()]
    drawn += [f"{dot.attrib['cx']},{dot.attrib['cy']}" for dot in svg.iter("circle")]
    assert len(drawn) == sum(drawable(y) for _, y in points)
    for pair in drawn:
        x, y = map(float, pair.split(","))
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT


def test_the_command_finds_a_run_by_its_name_and_names_those_there_are(tmp_path: Path) -> None:
    run(tmp_path / "train" / "7")
    runner = CliRunner()
    done = runner.invoke(build(), ["report", "7", "--data", str(tmp_path)])
    assert done.exit_code == 0
    assert Path(done.output.strip()) == tmp_path / "train" / "7" / "report.html"
    refused = runner.invoke(build(), ["report", "8", "--data", str(tmp_path)])
    assert isinstance(refused.exception, BadInput)
    assert refused.exception.hint == "there are: 7"
