"""What people see of a dataset: a row per session.

Owns the counting and the table; reads through ``Dataset`` and changes nothing. Counting reads only the
narrow columns, so that listing a large dataset does not rebuild its prompts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from forge.session_tree import reward_text
from forge.storage.dataset import Dataset, existing
from forge.storage.records import CallStatus, Session


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


def opened(data: Path) -> Dataset:
    """For a command: what cannot be read is told by ``damage_lines``, not by the log too."""
    logging.getLogger("forge.storage").addHandler(logging.NullHandler())
    return Dataset(existing(data))


def damage_lines(dataset: Dataset) -> list[str]:
    """One line per file that could not be read, and what to do."""
    if not dataset.damaged:
        return []
    told = dict.fromkeys(damaged.told() for damaged in dataset.damaged)
    return [
        *(f"cannot be read, and left out: {each}" for each in told),
        f"  next: forge decode --rebuild --data {dataset.data} makes parts anew; move foreign files out of it",
    ]


def count(dataset: Dataset, run_id: str | None = None) -> dict[str, Counts]:
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
