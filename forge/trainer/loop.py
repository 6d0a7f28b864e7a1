"""One training run: read samples, choose what learns, step on Ray, publish the weights.

Whatever can be refused is refused before Ray starts or a model loads. The batch is every kept row of the runs given;
each of the steps is one pass over it, with the recorded log probs as the old ones throughout.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from forge.policy import weights
from forge.policy.model import ensure_model
from forge.storage.dataset import Dataset, existing
from forge.storage.errors import BadInput, Untrainable
from forge.storage.records import Sample
from forge.trainer import advantage
from forge.trainer.advantage import Left, Selection
from forge.trainer.batch import Row, rows_of
from forge.trainer.cluster import cluster
from forge.trainer.config import StepStats, TrainConfig
from forge.trainer.gate import require_sound, why_no_samples
from forge.trainer.metrics import Metrics
from forge.trainer.publish import announce, control_token
from forge.trainer.remote import RemoteLearner

DEFAULT_LINEAGE: Final = "main"
DRIFT_LIMIT: Final = 0.1
"""Nats, mean. Above it on fresh samples, these weights did not sample them; a bf16 engine stays near 0.03."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Base:
    """Where training starts from."""

    path: Path
    version: int
    lineage: str


@dataclass(frozen=True, slots=True)
class TrainReport:
    base: Base
    version: int
    path: Path
    digest: str
    selection: Selection
    steps: list[StepStats]
    metrics: Path


def train(config: TrainConfig, say: Say) -> TrainReport:
    """Raises ``Untrainable`` if no group has spread."""
    token = control_token(config) if config.control is not None else None
    samples = read_samples(config)
    base = _base(config, samples, say)
    chosen = advantage.select(
        samples, version=base.version, max_staleness=config.max_staleness, divide_by_std=config.divide_by_std
    )
    if not chosen.rows:
        raise Untrainable(f"nothing to learn from: {account(chosen)}", _hint(chosen))
    rows = rows_of(chosen)
    say(f"samples    {account(chosen)}")
    version = _next_version(config.data, base.version)
    out = config.out or config.data / "train" / str(version)
    with Metrics(out) as metrics, cluster(config.ray):
        learner = RemoteLearner(base.path, config.hyper)
        say(f"model      {base.path}, version {base.version}, on {learner.load()}")
        steps = _steps(config, learner, rows, base.version, chosen, metrics, say)
        path = weights.publish(config.data, version, learner.save, base.lineage)
    published = weights.current(config.data)
    assert published is not None
    say(f"published  version {version}, digest {published.digest[:12]}, {path}")
    if config.control is not None and token is not None:
        asyncio.run(announce(config.control, token, published))
        say(f"serving    version {version} through {config.control}")
    return TrainReport(base, version, path, published.digest, chosen, steps, metrics.path)


def _next_version(data: Path, version: int) -> int:
    """Above every directory there is: a run that died before it moved CURRENT leaves one that nobody may reuse."""
    taken = [int(path.name) for path in (data / "policy").glob("*") if path.name.isdecimal()]
    return 1 + max(version, *taken, 0)


def _steps(
    config: TrainConfig,
    learner: RemoteLearner,
    rows: list[Row],
    version: int,
    chosen: Selection,
    metrics: Metrics,
    say: Say,
) -> list[StepStats]:
    steps: list[StepStats] = []
    for number in range(1, config.steps + 1):
        name = f"step {number}/{config.steps}"
        stats = learner.step(rows, partial(_tell, say, name, len(rows)))
        steps.append(stats)
        metrics.write(number, version, chosen, stats)
        say(f"{name}   {_line(stats)}")
        if number == 1 and stats.delta_log_prob_mean > DRIFT_LIMIT and not any(chosen.staleness):
            say("warning    recorded log probs are far from these weights': did another model sample these?")
    return steps


def _tell(say: Say, name: str, count: int, done: int) -> None:
    say(f"{name}   {done} of {count} rows seen")


def read_samples(config: TrainConfig) -> list[Sample]:
    """The runs' rows, each with its session's latest reward: a grader may have changed it after they were written."""
    data = Dataset(existing(config.data))
    known = data.runs()
    if missing := sorted(set(config.runs) - set(known)):
        raise BadInput(f"{config.data} has no run {missing[0]!r}", f"it has: {', '.join(known) or 'none'}")
    samples: list[Sample] = []
    for run in config.runs or known:
        latest = {session.session_id: session for session in data.sessions(run)}
        for sample in data.samples(run, config.recipe):
            session = latest.get(sample.session_id)
            if session is not None:
                sample = replace(sample, reward=session.reward, reward_status=session.reward_status)
            samples.append(sample)
    if data.damaged:
        raise BadInput(
            f"{data.damaged[0].path} cannot be read: {data.damaged[0].reason} ({len(data.damaged)} damaged)",
            "repair it with: forge decode --rebuild, or leave its run out with --run",
        )
    runs = config.runs or known
    if not samples:
        raise Untrainable(
            f"{config.data} has no samples in the runs asked for ({', '.join(runs) or 'none'}); "
            f"their calls: {why_no_samples(data, runs)}",
            "calls need token ids and log probs, and closed sessions: forge run --help",
        )
    if not config.unverified:
        require_sound(data, runs, config.recipe)
    return samples


def account(chosen: Selection) -> str:
    """What learns and what does not, with its reasons."""
    kept = (
        f"{len(chosen.rows)} rows of {len(chosen.advantages)} sessions in {chosen.groups_kept} groups, "
        f"{sum(chosen.tokens.values())} tokens"
    )
    left = [
        f"{_counts(dropped)} {name}"
        for name, dropped in (
            ("groups", chosen.groups_dropped),
            ("sessions", chosen.sessions_dropped),
            ("rows", chosen.rows_dropped),
        )
        if dropped
    ]
    return f"{kept}; left out: {'; '.join(left)}" if left else kept


def _counts(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))


def _hint(chosen: Selection) -> str:
    if chosen.rows_dropped[Left.STALE] or chosen.rows_dropped[Left.NEWER]:
        return "sample sessions with the current weights (forge run), or allow older ones: --max-staleness N"
    if chosen.groups_dropped[Left.NO_SPREAD]:
        return (
            "all rewards of a group are equal: take more sessions per task (--group-size), or tasks that fail at times"
        )
    return "group sessions of one task and grade them: forge run --group-size N with a grader"


def _base(config: TrainConfig, samples: list[Sample], say: Say) -> Base:
    """Published weights carry their version. A model that is named is taken to be what was sampled from."""
    current = weights.current(config.data)
    lineage = current.lineage if current else DEFAULT_LINEAGE
    served = current.version if current else 0
    if config.model is not None:
        sampled = max((s.policy_version_max for s in samples if s.policy_version_max is not None), default=0)
        return Base(ensure_model(config.model, tell=say), max(served, sampled), lineage)
    return Base(current.path if current else ensure_model(tell=say), served, lineage)


def _line(stats: StepStats) -> str:
    return (
        f"loss {stats.loss:+.5f}, gradient {stats.grad_norm:.4f}, "
        f"ratio {stats.ratio_mean:.4f} (max {stats.ratio_max:.3f}), "
        f"clipped {stats.clip_low_fraction:.1%} low {stats.clip_high_fraction:.1%} high, "
        f"recorded log probs off by {stats.delta_log_prob_mean:.1e} (max {stats.delta_log_prob_max:.1e})"
    )
