"""The table at the end of a run, and below it what did not go well, in lines that fit any terminal."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from rich.console import Console
from rich.table import Table

from forge.run_report import RunReport, SessionReport

COLUMNS = ("session", "task", "harness", "calls", "tokens", "rows", "reward", "status")
TEXTS = ("session", "task", "harness", "status")
SHOWN_MAX = 20
"""Lines of one kind below the table; more are counted."""


def print_report(report: RunReport, console: Console) -> None:
    table = Table(title=f"run {report.run_id}", box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.title_justify = "left"
    for name in COLUMNS:
        justify: Literal["left", "right"] = "left" if name in TEXTS else "right"
        table.add_column(name, no_wrap=name != "task", overflow="fold", min_width=len(name), justify=justify)
    for each in report.sessions:
        table.add_row(*_cells(each))
    console.print(table)
    for line in _lines(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _cells(each: SessionReport) -> tuple[str, ...]:
    reward = "-" if each.reward is None else f"{each.reward:.4g}"
    numbers = (str(each.calls), str(each.output_tokens), str(each.rows), reward)
    return (each.session_id, f"{each.task_id}#{each.rollout_index}", each.harness, *numbers, str(each.status))


def _lines(report: RunReport) -> list[str]:
    failed = [f"session {each.session_id} is {each.status}: {each.error}" for each in report.sessions if each.error]
    cannot = [
        f"call {call_id} of session {each.session_id} cannot train: {reason}"
        for each, call_id, reason in report.untrainable
    ]
    reasons = Counter(each.reward_reason for each in report.sessions if each.reward_reason and not each.error)
    return [
        *_first(failed),
        *_first(cannot),
        *(f"no reward in {count} sessions: {reason}" for reason, count in reasons.most_common(SHOWN_MAX)),
        f"dataset: {report.data}",
        f"outputs and transcripts: {report.data / 'harness' / report.run_id}",
    ]


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_MAX
    return lines if more <= 0 else [*lines[:SHOWN_MAX], f"... and {more} more"]
