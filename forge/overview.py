"""What people see of a dataset: a row per session, and one session's calls as a tree.

Owns the counting and the rich renderables; reads through ``Dataset`` and changes nothing. Counting reads only the
narrow columns, so that listing a large dataset does not rebuild its prompts.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from forge.storage.dataset import Dataset
from forge.storage.records import Call, CallStatus, Session
from forge.storage.trajectory import build

PIPED_WIDTH = 240
"""Columns where there is no terminal: a table in a file or a pipe is not cut."""
TEXT_WIDTH = 100
"""Characters of a call's answer that the tree shows."""


def console() -> Console:
    """Where tables are printed."""
    found = Console()
    return found if found.is_terminal else Console(width=PIPED_WIDTH)


@dataclass(slots=True)
class Counts:
    """What a session's rows add up to."""

    calls: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    untrainable: Counter[str] = field(default_factory=Counter)
    """Reasons of the ok calls that may not train."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    rows: int = 0
    versions: set[int] = field(default_factory=set)


def count(data: Path, run_id: str | None = None) -> dict[str, Counts]:
    """Counts per session id."""
    counts: dict[str, Counts] = {}
    names = [
        "session_id",
        "status",
        "prompt_len",
        "output_ids",
        "policy_version_start",
        "trainable",
        "untrainable_reason",
    ]
    dataset = Dataset(data)
    for table in dataset.call_tables(names, run_id):
        for row in table.to_pylist():
            c = counts.setdefault(row["session_id"], Counts())
            c.calls += 1
            c.by_status[row["status"]] += 1
            c.prompt_tokens += row["prompt_len"]
            c.output_tokens += len(row["output_ids"])
            if row["policy_version_start"] is not None:
                c.versions.add(row["policy_version_start"])
            if row["status"] == CallStatus.OK and not row["trainable"]:
                c.untrainable[row["untrainable_reason"] or "unknown"] += 1
    for table in dataset.sample_tables(run_id):
        for session_id in table.column("session_id").to_pylist():
            counts.setdefault(session_id, Counts()).rows += 1
    return counts


def sessions_table(sessions: Iterable[Session], counts: dict[str, Counts]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in (
        "session",
        "run",
        "harness",
        "task",
        "status",
        "reward",
        "calls",
        "prompt tok",
        "output tok",
        "rows",
        "version",
    ):
        right = name in ("reward", "calls", "prompt tok", "output tok", "rows", "version")
        table.add_column(name, justify="right" if right else "left", no_wrap=name == "session")
    for s in sessions:
        c = counts.get(s.session_id, Counts())
        calls = (
            str(c.calls) if c.by_status[CallStatus.OK] == c.calls else f"{c.by_status[CallStatus.OK]} ok of {c.calls}"
        )
        table.add_row(
            *(s.session_id, s.run_id, s.harness or "-", s.task_id or "-", s.status),
            *(reward_text(s), calls, f"{c.prompt_tokens:,}", f"{c.output_tokens:,}", str(c.rows)),
            ",".join(map(str, sorted(c.versions))) or "-",
        )
    return table


def reward_text(session: Session) -> str:
    return "null" if session.reward is None else f"{session.reward:.3f}"


def session_tree(session: Session, calls: Sequence[Call]) -> Tree:
    """The session's calls as a tree: how each joins, what was said, what it is worth."""
    opened = datetime.fromtimestamp(session.open_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    task = f", task {escape(session.task_id)}" if session.task_id else ""
    head = Tree(
        f"[bold]{session.session_id}[/bold] {escape(session.harness or '')} {session.status}, "
        f"reward {reward_text(session)}, opened {opened}{task}"
    )
    branches: list[Tree] = []
    for node in build(calls).nodes:
        above = head if node.parent is None else branches[node.parent]
        cause = node.placement.join_cause
        join = "continues" if node.parent is not None and cause is None else (cause or "no prompt ids")
        branches.append(above.add(call_line(node.call, join)))
    return head


def call_line(call: Call, join: str) -> str:
    marks = f"{len(call.prompt_ids):,} -> {len(call.output_ids):,} tokens"
    version = "" if call.policy_version_start is None else f", version {call.policy_version_start}"
    worth = "" if call.trainable else f" [yellow]not trainable: {call.untrainable_reason}[/yellow]"
    status = call.status if call.status == CallStatus.OK else f"[red]{call.status}[/red]"
    kind = "" if call.kind == "main" else f" {call.kind}"
    return f"[bold]{call.call_id}[/bold] {join}{kind}: {status}, {marks}{version}{worth}\n{escape(said(call))}"


def said(call: Call) -> str:
    """One line of what the policy answered."""
    if call.response is None:
        return call.error or "(no answer)"
    message = json.loads(call.response)
    parts = [str(message.get("content") or "")]
    for tool in message.get("tool_calls") or []:
        function = tool.get("function") or {}
        parts.append(f"{function.get('name')}({function.get('arguments')})")
    text = " ".join(" ".join(parts).split())
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 1] + "…"
