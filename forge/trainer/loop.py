"""The loop: a batch of samples from a source, what of it learns, steps, new weights published; again.

Where samples come from is one function, ``Source``: recorded runs once (``train``), or rollouts on the newest weights.
The non-obvious fact: on a batch that is stepped on more than once, the learner's log probs from before the first step
are the old ones of the ratio throughout, and go into the checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from forge.policy import weights
from forge.policy.weights import Published
from forge.storage.errors import BadInput, Untrainable
from forge.storage.records import LogProbs, Sample
from forge.trainer import account, advantage, checkpoint
from forge.trainer.advantage import Selection
from forge.trainer.batch import Row, check, drawn, rows_digest, rows_of
from forge.trainer.checkpoint import Manifest
from forge.trainer.cluster import cluster
from forge.trainer.config import Correction, Objective, StepStats, TrainConfig
from forge.trainer.group import LearnerGroup
from forge.trainer.metrics import Metrics, read
from forge.trainer.publish import announce, control_token
from forge.trainer.recorded import read_samples
from forge.trainer.start import Base, Start, next_version, start_of, told
from forge.trainer.taken import Taken

DRIFT_LIMIT: Final = 0.1
"""Nats, mean. Above it on fresh samples, these weights did not sample them; a bf16 engine stays near 0.03."""

Say = Callable[[str], None]
Seen = Callable[[dict[str, Any]], None]
Source = Callable[[int, int], Sequence[Sample] | None]
"""``source(batch, version)``: the samples of that batch, counted from 0, for weights of that version to learn from,
each with its session's reward and group; None when there are no more. It may give anything recorded: the loop chooses,
and counts what it leaves."""


class Learns(Protocol):
    """Learners, wherever they run."""

    def step(self, rows: list[Row], tell: Callable[[int], None]) -> StepStats: ...

    def log_probs(self, rows: Sequence[Row]) -> list[LogProbs]: ...

    def save(self, path: Path) -> None: ...

    def keep(self, path: Path) -> None: ...

    def go_on(self, path: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainReport:
    base: Base
    version: int
    path: Path
    digest: str
    selection: Selection
    steps: list[StepStats]
    metrics: Path


def train(config: TrainConfig, say: Say, seen: Seen = lambda line: None) -> TrainReport:
    """Learns from recorded runs, as one batch. Raises ``Untrainable`` if no group has spread."""
    samples = read_samples(config)
    return learn(config, lambda batch, version: samples if batch == 0 else None, say, first=samples, seen=seen)


def learn(
    config: TrainConfig,
    source: Source,
    say: Say,
    *,
    first: Sequence[Sample] = (),
    seen: Seen = lambda line: None,
) -> TrainReport:
    """Until the source has no more. ``first``: samples by which the base's version can be told, where the model is
    named; where nothing, or nothing right, can be learned from them, that is said before Ray starts or a model loads.
    ``seen`` hears every line of the metrics."""
    token = control_token(config) if config.control is not None else None
    start = start_of(config, first, say)
    if first:
        chosen = choose(config, first, start.base.version)
        if not chosen.rows:
            raise _nothing(chosen)
        for row in chosen.rows:
            check(row)
    with (
        Metrics(start.out, start.step, seen) as metrics,
        cluster(config.ray),
        LearnerGroup(
            start.base.path, config.hyper, workers=config.workers, gpu=config.gpu, scratch=start.out / "ray"
        ) as learner,
    ):
        say(f"model      {start.base.path}, version {start.base.version}, on {learner.load()}")
        return Loop(config, start, learner, metrics, say, token).run(source)


class Loop:
    """One run of the loop over a source."""

    def __init__(
        self, config: TrainConfig, start: Start, learner: Learns, metrics: Metrics, say: Say, token: str | None
    ) -> None:
        self._config = config
        self._start = start
        self._learner = learner
        self._metrics = metrics
        self._say = say
        self._token = token
        self._step = self._kept = start.step
        self._within = config.steps > 1 and not config.drawn_anew
        self._steps: list[StepStats] = []
        self._taken = Taken(read(metrics.path))

    def run(self, source: Source) -> TrainReport:
        config, start = self._config, self._start
        if start.folder is not None:
            self._learner.go_on(start.folder)
            self._say(f"resumed    after step {start.step} from {start.folder}")
        version, batch = self._served(), start.batch
        published, chosen = None, Selection()
        while (samples := source(batch, version)) is not None:
            chosen = choose(config, samples, version)
            self._say(f"samples    {account.account(chosen)}")
            if chosen.rows:
                self._batch(batch, version, chosen)
                published = self._publish(version)
                version = published.version
            else:
                self._say(f"skipped    nothing to learn from: {account.hint(chosen)}")
            batch += 1
            if not self._within:
                self._checkpoint(batch, 0, version, None, None)
        if published is None:
            raise _nothing(chosen)
        return TrainReport(
            start.base, version, published.path, published.digest, chosen, self._steps, self._metrics.path
        )

    def _served(self) -> int:
        """The version of the learner's weights. A run that was killed after it had published and before its checkpoint
        left newer weights as the current ones: they are published anew, for rollouts are of what is served."""
        config, start = self._config, self._start
        if start.version is None:
            return start.base.version
        current = weights.current(config.data)
        if start.batch_step == 0 and current is not None and current.version != start.version:
            return self._publish(start.version).version
        return start.version

    def _batch(self, batch: int, version: int, chosen: Selection) -> None:
        """All steps on one batch, or those that are left of it."""
        config, resumed = self._config, batch == self._start.batch and self._start.batch_step > 0
        digest = rows_digest(chosen.rows)
        if resumed and digest != self._start.batch_digest:
            raise BadInput(
                f"batch {batch} is not the one that the checkpoint was made in: its sessions or rewards differ",
                "start anew with another --out",
            )
        anchors = self._anchors(chosen, self._start.folder if resumed else None)
        fresh = config.hyper.objective is Objective.GRPO and not any(chosen.staleness)
        for number in range(self._start.batch_step if resumed else 0, config.steps):
            part = chosen.part(drawn(list(chosen.advantages), number, config.step_sessions, config.hyper.seed))
            stats = self._one(batch, version, part, anchors)
            if number == 0 and fresh and len(chosen.staleness) == len(chosen.rows):
                self._taken.look(version, stats)
            if self._step == 1 and fresh and stats.delta_log_prob_mean > DRIFT_LIMIT:
                self._say("warning    recorded log probs are far from these weights': did another model sample these?")
            if self._within:
                self._checkpoint(batch, number + 1, version, digest, anchors)

    def _one(self, batch: int, version: int, part: Selection, anchors: Mapping[str, LogProbs] | None) -> StepStats:
        rows = rows_of(part, self._config.mean)
        if anchors is not None:
            rows = [replace(row, anchor=anchors[row.sample_id]) for row in rows]
        self._step += 1
        name = f"step {self._step}"
        stats = self._learner.step(rows, lambda done: self._say(f"{name}     {done} rows seen"))
        self._steps.append(stats)
        self._metrics.write(self._step, batch, version, part, stats)
        self._say(f"{name}     {account.line(stats)}")
        return stats

    def _anchors(self, chosen: Selection, folder: Path | None) -> Mapping[str, LogProbs] | None:
        """The learner's log probs of all rows before the batch's first step, where a later step needs them."""
        config = self._config
        if config.steps == 1 or config.hyper.objective is Objective.SFT or config.hyper.correction is Correction.NONE:
            return None
        if folder is not None:
            return checkpoint.anchors_of(folder)
        found = self._learner.log_probs(rows_of(chosen))
        return {row.sample_id: each for row, each in zip(chosen.rows, found, strict=True)}

    def _publish(self, version: int) -> Published:
        path = weights.publish(
            self._config.data, next_version(self._config.data, version), self._learner.save, self._start.base.lineage
        )
        published = weights.current(self._config.data)
        assert published is not None
        self._say(f"published  version {published.version}, digest {published.digest[:12]}, {path}")
        if self._config.control is not None and self._token is not None:
            asyncio.run(announce(self._config.control, self._token, published))
            self._say(f"serving    version {published.version} through {self._config.control}")
        return published

    def _checkpoint(
        self, batch: int, batch_step: int, version: int, digest: str | None, anchors: Mapping[str, LogProbs] | None
    ) -> None:
        config, start = self._config, self._start
        every = config.checkpoint_every
        if not every or self._step // every == self._kept // every:
            return
        self._kept = self._step
        manifest = Manifest(
            step=self._step, batch=batch, batch_step=batch_step, version=version, lineage=start.base.lineage,
            base=str(start.base.path), base_version=start.base.version, base_digest=start.base_digest,
            told=told(config), batch_digest=digest,
        )  # fmt: skip
        checkpoint.write(start.out, manifest, self._learner.keep, anchors)


def choose(config: TrainConfig, samples: Iterable[Sample], version: int) -> Selection:
    if config.hyper.objective is Objective.SFT:
        return advantage.select_all(samples, version=version)
    return advantage.select(
        samples,
        version=version,
        max_staleness=config.max_staleness,
        baseline=config.baseline,
        overlong=config.overlong,
    )


def _nothing(chosen: Selection) -> Untrainable:
    return Untrainable(f"nothing to learn from: {account.account(chosen)}", account.hint(chosen))
