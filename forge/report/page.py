"""The page of a training run: its curves, and the sessions behind every step, with links into what they left.

Reads ``metrics.jsonl``, ``sessions.jsonl`` and, of a run that drew its own sessions, ``rollouts.jsonl`` of its folder,
and nothing else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from forge.report.chart import Points, chart
from forge.storage.errors import BadInput
from forge.trainer.metrics import FILE, ROLLOUTS, SESSIONS, read

CURVES: Final[Mapping[str, Mapping[str, str]]] = {
    "Reward": {"reward_mean": "mean of all graded sessions", "positive_share": "share above 0"},
    "Length": {"session_tokens": "trained tokens a session", "rows_per_session": "rows a session"},
    "Entropy": {"entropy": "nats a token"},
    "KL of rollout and trainer": {"kl_rollout_k1": "k1", "kl_rollout_k3": "k3", "kl_base": "to the first model"},
    "Recorded log probs against the trainer's": {"delta_log_prob_mean": "mean", "delta_log_prob_max": "greatest"},
    "Clipped share": {"clip_low_fraction": "low", "clip_high_fraction": "high", "corrected_fraction": "corrected"},
    "Effective share of the sample": {"effective_share": "of the tokens"},
    "Staleness": {"staleness_mean": "mean", "staleness_max": "greatest"},
    "Gradient": {"grad_norm": "norm before it is clipped"},
    "Loss": {"loss": "of the batch"},
    "Throughput": {"tokens_per_second": "tokens a second, in the step"},
}
STYLE: Final = """\
body{font:14px/1.4 system-ui,sans-serif;margin:2em auto;max-width:1000px;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.4em}main{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:1em}
figure{margin:0;border:1px solid #ddd;border-radius:4px;padding:.5em}figcaption{font-weight:600}
svg{width:100%}
table{border-collapse:collapse;margin:.5em 0 1em}td,th{padding:.1em .8em .1em 0;text-align:left}
td.number{text-align:right;font-variant-numeric:tabular-nums}summary{cursor:pointer}
"""


def write(folder: Path, data: Path, target: Path) -> Path:
    """Raises ``BadInput`` where the folder holds no run."""
    lines = read(folder / FILE)
    if not lines:
        raise BadInput(f"{folder} holds no {FILE} with a step in it", "name a folder below DATA/train, or its path")
    sessions, batches = read(folder / SESSIONS), read(folder / ROLLOUTS)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(_page(folder.name, lines, sessions, batches, _linker(data, target)), encoding="utf-8")
    return target


def _page(
    name: str,
    lines: Sequence[Mapping[str, Any]],
    sessions: Sequence[Mapping[str, Any]],
    batches: Sequence[Mapping[str, Any]],
    link: Callable[..., str],
) -> str:
    by_step: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for each in sessions:
        by_step[each["step"]].append(each)
    first, last = lines[0], lines[-1]
    said = (
        f"{len(lines)} steps, {len(sessions)} sessions learned from, "
        f"version {first['version']} to {last['version']}, {last['time'] - first['time']:.0f} s"
    )
    charts = "".join(
        chart(title, {label: [(line["step"], line.get(key)) for line in lines] for key, label in curves.items()})
        for title, curves in CURVES.items()
    )
    balance = chart("Groups", _balance(lines)) + (_drawn(batches) if batches else "")
    steps = "".join(_step(line, by_step[line["step"]], link) for line in lines)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(name)}</title><style>{STYLE}</style>'
        f"<h1>Training run {escape(name)}</h1><p>{escape(said)}</p><main>{charts}{balance}</main>"
        f"<h2>Steps and their sessions</h2>{steps}</html>\n"
    )


def _drawn(batches: Sequence[Mapping[str, Any]]) -> str:
    """Over all sessions drawn: those that were chosen for a group are no fair sample of them."""
    rates = {"of all sessions drawn": [(line["batch"] + 1, line["pass_rate"]) for line in batches]}
    counts: dict[str, Points] = {
        label: [(line["batch"] + 1, line[key]) for line in batches]
        for key, label in (("sessions", "drawn"), ("sessions_chosen", "chosen"), ("rewards_null", "without a reward"))
    }
    return chart("Pass rate, by batch", rates) + chart("Sessions, by batch", counts)


def _balance(lines: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Groups that taught, and those left out by reason."""
    reasons = sorted({reason for line in lines for reason in line["groups_dropped"]})
    found: dict[str, Points] = {"learned from": [(line["step"], line["groups_kept"]) for line in lines]}
    for reason in reasons:
        found[reason.replace("_", " ")] = [(line["step"], line["groups_dropped"].get(reason, 0)) for line in lines]
    return found


def _step(line: Mapping[str, Any], sessions: Sequence[Mapping[str, Any]], link: Callable[..., str]) -> str:
    reward = "" if line["reward_mean"] is None else f", mean reward {line['reward_mean']:.3f}"
    rows = "".join(
        f"<tr><td>{link(each['run_id'], each['session_id'])}<td>{escape(str(each['task_id']))}"
        f'<td class="number">{_number(each["reward"])}<td class="number">{each["advantage"]:+.3f}'
        f'<td class="number">{each["tokens"]}'
        for each in sorted(sessions, key=lambda each: (str(each["group_id"]), each["session_id"]))
    )
    head = "<tr><th>session<th>task<th>reward<th>advantage<th>tokens"
    return (
        f"<details><summary>step {line['step']}: {line['sessions']} sessions{reward}</summary>"
        f"<table>{head}{rows}</table></details>"
    )


def _linker(data: Path, target: Path) -> Callable[..., str]:
    def link(run_id: str, session_id: str) -> str:
        """To what the session's harness left, where that was kept: relative, so that both can be moved together."""
        kept = data / "harness" / run_id / session_id
        if not kept.is_dir():
            return escape(session_id)
        return f'<a href="{quote(os.path.relpath(kept, target.parent))}/">{escape(session_id)}</a>'

    return link


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
