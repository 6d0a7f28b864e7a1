"""The table at the end of a run, and what the reader should do about it."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from forge.run_report import RunReport, SessionReport
from forge.storage.records import SessionStatus

UNTRAINABLE_SHOWN = 20


def print_report(report: RunReport, console: Console) -> None:
    table = Table(
        "session", "task", "harness", "calls", "tokens", "rows", "reward", "status", title=f"run {report.run_id}"
    )
    for each in report.sessions:
        table.add_row(*_cells(each))
    console.print(table)

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    reasons = Counter(each.reward_reason for each in report.sessions if each.reward is None and each.reward_reason)
    for reason, count in reasons.most_common():
        line(f"no reward in {count} sessions: {reason}")
    cannot = report.untrainable
    for session, call_id, reason in cannot[:UNTRAINABLE_SHOWN]:
        line(f"cannot train: call {call_id} of session {session.session_id}: {reason}")
    if len(cannot) > UNTRAINABLE_SHOWN:
        line(f"... and {len(cannot) - UNTRAINABLE_SHOWN} more")
    line(f"dataset: {report.data}")
    line(f"outputs and transcripts: {report.data / 'harness' / report.run_id}")


def _cells(each: SessionReport) -> tuple[str, ...]:
    reward = "-" if each.reward is None else f"{each.reward:g}"
    status = str(each.status)
    if each.error and each.status is not SessionStatus.COMPLETED:
        status += f": {each.error}"
    return (
        each.session_id,
        f"{each.task_id}#{each.rollout_index}",
        each.harness,
        str(each.calls),
        str(each.output_tokens),
        str(each.rows),
        reward,
        status,
    )
