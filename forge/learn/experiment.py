"""One policy's course: rollouts in the harness, a step, new weights served, and what it does on held-out instances.

The source of the trainer's batches is this: sessions of the newest weights, in groups, through a proxy that runs all
the while. The control is the same with the rewards of each batch dealt out anew among its sessions: all that is left
to learn from is chance.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Final

from forge.adapters.trainers.rows import Needs
from forge.learn.sizes import Sizes
from forge.learn.small import MICRO_TOKENS
from forge.learn.tasks import instances
from forge.plugins.episodes import Asked, Episode, Episodes
from forge.plugins.settings import Settings
from forge.storage.records import Purpose, Sample
from forge.trainer.config import Hyper, TrainConfig
from forge.trainer.loop import learn

MAX_TOKENS: Final = 64
"""Of one answer; the longest right call takes about fifty."""
SAMPLING: Final = {"max_tokens": MAX_TOKENS}
NEEDS: Final = Needs()

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Point:
    """What the policy did on held-out instances."""

    batch: int
    """Batches learned from by then."""
    sessions: int
    reward: float
    seconds: float
    """Since the first evaluation began."""


@dataclass(slots=True)
class Course:
    seed: int
    shuffled: bool
    held_out: list[Point] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    """Mean reward of each batch, as graded."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"seed {self.seed}{', rewards shuffled' if self.shuffled else ''}"


class Rollouts:
    """The trainer's source. The loop calls it from a thread; sessions run on the event loop that made it."""

    def __init__(self, train: Episodes, held_out: Episodes, course: Course, sizes: Sizes, say: Say) -> None:
        self._train = train
        self._held_out = held_out
        self._course = course
        self._sizes = sizes
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._instances = instances(100 + course.seed, held_out=False)
        self._draws = random.Random(course.seed)
        self._began: float | None = None

    def __call__(self, batch: int, version: int) -> list[Sample] | None:
        return asyncio.run_coroutine_threadsafe(self._next(batch), self._loop).result()

    async def _next(self, batch: int) -> list[Sample] | None:
        if batch % self._sizes.every == 0 or batch == self._sizes.batches:
            await self._evaluate(batch)
        if batch == self._sizes.batches:
            return None
        tasks = [
            each.task(f"{batch}-{number}") for number, each in enumerate(islice(self._instances, self._sizes.tasks))
        ]
        wanted = [Asked(task, task.id, index) for task in tasks for index in range(self._sizes.group)]
        episodes = await self._train.many(wanted, SAMPLING)
        rewards = _rewards(episodes)
        self._course.trained.append(fmean(rewards))
        self._say(f"{self._course.name}: batch {batch + 1}/{self._sizes.batches}, mean reward {fmean(rewards):.3f}")
        samples = [sample for episode in episodes for sample in episode.closed.samples]
        return self._dealt(samples) if self._course.shuffled else samples

    async def _evaluate(self, batch: int) -> None:
        """The same held-out instances every time."""
        self._began = self._began or time.monotonic()
        chosen = islice(instances(0, held_out=True), self._sizes.held_out)
        wanted = [Asked(each.task(f"held-out-{n}"), f"{batch}-held-out-{n}", 0) for n, each in enumerate(chosen)]
        rewards = _rewards(await self._held_out.many(wanted, SAMPLING))
        point = Point(batch, len(rewards), fmean(rewards), time.monotonic() - self._began)
        self._course.held_out.append(point)
        self._say(
            f"{self._course.name}: held out after {batch} batches, {point.sessions} sessions, "
            f"mean reward {point.reward:.3f} ({point.seconds:.0f} s)"
        )

    def _dealt(self, samples: Sequence[Sample]) -> list[Sample]:
        earned = {sample.session_id: sample.reward for sample in samples}
        rewards = list(earned.values())
        self._draws.shuffle(rewards)
        dealt = dict(zip(earned, rewards, strict=True))
        return [replace(sample, reward=dealt[sample.session_id]) for sample in samples]


async def follow(
    data: Path, control: str, harness: str, seed: int, sizes: Sizes, say: Say, *, shuffled: bool
) -> Course:
    """``control``: of the proxy that records into ``data`` and serves its weights."""
    found, token_file = Course(seed, shuffled), data / "control.token"

    def episodes(purpose: Purpose) -> Episodes:
        settings = Settings(
            control=control,
            control_token_file=str(token_file),
            harness=harness,
            data=str(data),
            run_id=purpose.value,
            concurrency=sizes.concurrency,
            purpose=purpose.value,
        )
        return Episodes(settings, NEEDS)

    config = TrainConfig(
        data=data,
        steps=sizes.updates,
        hyper=Hyper(lr=sizes.lr, micro_tokens=MICRO_TOKENS, seed=seed),
        control=control,
        control_token_file=token_file,
        out=data / "train" / "learn",
    )
    began = time.monotonic()
    async with episodes(Purpose.TRAIN) as train, episodes(Purpose.EVAL) as held_out:
        source = Rollouts(train, held_out, found, sizes, say)
        await asyncio.to_thread(learn, config, source, say)
    found.seconds = time.monotonic() - began
    return found


def _rewards(episodes: Sequence[Episode]) -> list[float]:
    return [each.report.reward for each in episodes if each.report.reward is not None]
