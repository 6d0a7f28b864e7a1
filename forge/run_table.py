"""The table at the end of a run, and below it what did not go well, in lines that fit any terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forge.run_report import RunReport, SessionReport
from forge.storage.records import SessionStatus

COLUMNS = ("session", "task", "calls", "tokens", "rows", "reward", "transcript", "status")
SUMMARY = ("harness", "sessions", "completed", "reward", "calls", "rows/session", "s/session")
TEXTS = ("session", "task", "harness", "transcript", "status")
WRAPPED = ("task", "status")
"""What gives way on a narrow terminal; the rest fits into 80 columns."""
SHOWN_MAX = 20
"""Lines of one kind below the table; more are counted."""


def print_report(report: RunReport, console: Console) -> None:
    """Sessions by harness, then a line per harness, then what went wrong."""
    table = _table(COLUMNS, f"run {report.run_id}")
    for harness, sessions in report.by_harness().items():
        table.add_row(Text(harness, style="bold"))
        for each in sessions:
            table.add_row(*_cells(each))
    console.print(table)
    console.print()
    console.print(_summaries(report))
    console.print()
    for line in _lines(report):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(columns: Sequence[str], title: str | None = None) -> Table:
    table = Table(title=title, box=None, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False)
    table.title_justify = "left"
    for name in columns:
        justify: Literal["left", "right"] = "left" if name in TEXTS else "right"
        table.add_column(name, no_wrap=name not in WRAPPED, overflow="fold", min_width=len(name), justify=justify)
    return table


def _cells(each: SessionReport) -> tuple[str, ...]:
    numbers = (str(each.calls), str(each.output_tokens), str(each.rows), _number(each.reward))
    endings = (each.transcript.verdict.value, str(each.status))
    return (each.session_id, f"{each.task_id}#{each.rollout_index}", *numbers, *endings)


def _summaries(report: RunReport) -> Table:
    table = _table(SUMMARY)
    for each in report.summaries:
        counts = (str(each.sessions), str(each.completed), _number(each.reward), str(each.calls))
        table.add_row(each.harness, *counts, f"{each.rows:.2f}", f"{each.seconds:.1f}")
    return table


def _number(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.4g}"


def _lines(report: RunReport) -> list[str]:
    failed = [f"session {each.session_id} is {each.status}: {each.error}" for each in report.sessions if each.error]
    cannot = [
        f"call {call_id} of session {each.session_id} cannot train: {reason}"
        for each, call_id, reason in report.untrainable
    ]
    differs = [
        f"the transcript of session {each.session_id} differs: {difference}"
        for each in report.sessions
        for difference in each.transcript.differences
    ]
    reasons = Counter(each.reward_reason for each in report.sessions if each.reward_reason and not each.error)
    log = report.data / "harness" / report.run_id / "intercept.log"
    silent = any(each.status is SessionStatus.NO_CALLS for each in report.sessions) and log.exists()
    return [
        *_first(failed),
        *([f"refused hosts, and programs that do not trust the certificate, are in {log}"] if silent else []),
        *_first(cannot),
        *_first(differs),
        *(f"no reward in {count} sessions: {reason}" for reason, count in reasons.most_common(SHOWN_MAX)),
        f"dataset: {report.data}",
        f"outputs and transcripts: {report.data / 'harness' / report.run_id}",
    ]


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN_MAX
    return lines if more <= 0 else [*lines[:SHOWN_MAX], f"... and {more} more"]
