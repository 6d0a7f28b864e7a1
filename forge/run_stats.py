"""The counts of one run that people ask for, from narrow columns alone: no prompt is rebuilt.

Pure reading; the table and the JSON say the same. Not obvious: ``trained`` counts the ids with mask 1 in the rows of
the default recipe, which is what a trainer would see, and may be less than the sampled ids of trainable calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.table import Table

from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from forge.storage.records import CallStatus, Session

COLUMNS: Final = (
    *("kind", "status", "dialect", "harness", "prompt_len", "prompt_prefix_len", "output_ids", "join", "join_cause"),
    *("policy_version_start", "trainable", "untrainable_reason"),
)
UNKNOWN: Final = "unknown"


@dataclass(slots=True)
class RunStats:
    run_id: str
    sessions: int = 0
    session_status: Counter[str] = field(default_factory=Counter)
    harnesses: Counter[str] = field(default_factory=Counter)
    """Sessions by harness."""
    rewards: Counter[str] = field(default_factory=Counter)
    """Sessions by reward status: graded, null, pending."""
    reward_mean: float | None = None
    reward_min: float | None = None
    reward_max: float | None = None
    calls: int = 0
    by_kind: dict[str, Counter[str]] = field(default_factory=dict)
    """Kind to calls by status."""
    dialects: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    """Calls by policy version at their start."""
    joins: Counter[str] = field(default_factory=Counter)
    """Calls by cause; ``exact`` where the history goes on without one."""
    untrainable: Counter[str] = field(default_factory=Counter)
    """Calls that may not train, by reason."""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    """Prompt ids that the parent's prompt and output held already."""
    output_tokens: int = 0
    trainable_tokens: int = 0
    """Sampled ids of calls that may train."""
    trained_tokens: int = 0
    """Sampled ids with mask 1 in a row."""
    rows: int = 0
    rows_per_session: Counter[str] = field(default_factory=Counter)
    """How many sessions have that many rows."""
    damaged: list[str] = field(default_factory=list)

    @property
    def trainable_share(self) -> float:
        return _share(self.trained_tokens, self.output_tokens)

    @property
    def prefix_reuse(self) -> float:
        return _share(self.reused_tokens, self.prompt_tokens)

    def told(self) -> dict[str, Any]:
        found: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"trainable_share": self.trainable_share, "prefix_reuse": self.prefix_reuse}


def run_stats(dataset: Dataset, run_id: str) -> RunStats:
    """Raises ``BadInput`` if there is no such run."""
    if run_id not in (runs := dataset.runs()):
        raise BadInput(f"no run {run_id!r} in {dataset.data}", f"runs there: {', '.join(runs) or 'none'}")
    stats = RunStats(run_id)
    sessions = dataset.sessions(run_id)
    _sessions(stats, sessions)
    for table in dataset.call_tables(COLUMNS, run_id):
        _calls(stats, table)
    rows: Counter[str] = Counter({session.session_id: 0 for session in sessions})
    for table in dataset.sample_tables(run_id):
        rows.update(table.column("session_id").to_pylist())
        stats.trained_tokens += pc.sum(pc.list_flatten(table.column("response_mask"))).as_py() or 0
    stats.rows = rows.total()
    stats.rows_per_session = Counter(str(count) for count in rows.values())
    stats.damaged = list(dict.fromkeys(str(damaged.path) for damaged in dataset.damaged))
    return stats


def _sessions(stats: RunStats, sessions: Iterable[Session]) -> None:
    rewards = []
    for session in sessions:
        stats.sessions += 1
        stats.session_status[session.status] += 1
        stats.harnesses[session.harness or UNKNOWN] += 1
        stats.rewards[session.reward_status] += 1
        if session.reward is not None:
            rewards.append(session.reward)
    if rewards:
        stats.reward_mean, stats.reward_min, stats.reward_max = sum(rewards) / len(rewards), min(rewards), max(rewards)


def _calls(stats: RunStats, table: pa.Table) -> None:
    lengths = pc.list_value_length(table.column("output_ids")).to_pylist()
    for row, output in zip(table.drop_columns(["output_ids"]).to_pylist(), lengths, strict=True):
        stats.calls += 1
        stats.by_kind.setdefault(row["kind"], Counter())[row["status"]] += 1
        stats.dialects[row["dialect"]] += 1
        version = row["policy_version_start"]
        stats.versions[UNKNOWN if version is None else str(version)] += 1
        stats.joins[row["join_cause"] or ("exact" if row["join"] == "exact" else UNKNOWN)] += 1
        stats.prompt_tokens += row["prompt_len"]
        stats.reused_tokens += row["prompt_prefix_len"]
        stats.output_tokens += output
        if row["trainable"]:
            stats.trainable_tokens += output
        else:
            stats.untrainable[row["untrainable_reason"] or UNKNOWN] += 1


def stats_table(stats: RunStats) -> Table:
    table = Table(title=f"run {stats.run_id}", box=None, show_header=False, pad_edge=False)
    table.title_justify = "left"
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    rewards = _listed(stats.rewards)
    if stats.reward_mean is not None:
        rewards += f"; mean {stats.reward_mean:.3f}, from {stats.reward_min:.3g} to {stats.reward_max:.3g}"
    kinds = [f"{kind} {counts.total()}{_not_ok(counts)}" for kind, counts in sorted(stats.by_kind.items())]
    per_session = sorted(stats.rows_per_session.items(), key=lambda item: int(item[0]))
    for name, value in (
        ("sessions", f"{stats.sessions}: {_listed(stats.session_status)}"),
        ("harnesses", _listed(stats.harnesses)),
        ("rewards", rewards),
        ("calls", f"{stats.calls}: {', '.join(kinds)}"),
        ("dialects", _listed(stats.dialects)),
        ("versions", _listed(stats.versions)),
        ("joins", _listed(stats.joins)),
        ("prompt tokens", f"{stats.prompt_tokens:,}, {stats.prefix_reuse:.1%} of them known from the call before"),
        ("output tokens", f"{stats.output_tokens:,}"),
        ("trained tokens", f"{stats.trained_tokens:,}, {stats.trainable_share:.1%} of the output"),
        ("rows", str(stats.rows)),
        ("rows a session", ", ".join(f"{rows} in {count} sessions" for rows, count in per_session) or "-"),
        ("not trainable", _listed(stats.untrainable)),
    ):
        table.add_row(name, value)
    return table


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda i: (-i[1], i[0]))) or "-"


def _not_ok(counts: Counter[str]) -> str:
    other = {status: count for status, count in counts.items() if status != CallStatus.OK}
    return f" ({_listed(other)})" if other else ""


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
