"""The warm start: sessions of the teacher in the real harness, recorded; a small model that has read its text is taught
by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from forge.adapters.harnesses import find
from forge.learn.pretrain import pretrain
from forge.learn.sizes import Sizes
from forge.learn.small import MICRO_TOKENS, make
from forge.learn.tasks import instances
from forge.learn.teacher import teaching
from forge.policy import weights
from forge.run import run
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.runners import find as find_runner
from forge.storage.dataset import Dataset
from forge.storage.records import Sample
from forge.tasks import Task
from forge.trainer.config import Hyper, Objective, TrainConfig
from forge.trainer.loop import learn

RUN: Final = "warmup"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Quiet:
    """A ``Watch`` that says what goes on, not every session."""

    say: Say

    def begun(self, task: Task, rollout_index: int) -> None:
        """Not said."""

    def done(self, report: SessionReport) -> None:
        if report.error:
            self.say(f"{report.session_id} {report.status}: {report.error}")


async def record(data: Path, harness: str, sizes: Sizes, say: Say) -> list[Sample]:
    """The teacher's sessions; those that are there already are not run again."""
    if not (data / "calls").exists():
        tasks = tuple(
            each.task(f"warm-{number}")
            for number, each in enumerate(islice(instances(1, held_out=False), sizes.warm_sessions))
        )
        say(f"recording {len(tasks)} sessions of the teacher in {harness}")
        async with teaching(make(data / "teacher", 0), 0) as url:
            config = RunConfig(
                adapters=(find(harness),),
                tasks=tasks,
                runner=find_runner("local"),
                data=data,
                run_id=RUN,
                concurrency=sizes.concurrency,
                policy=url,
            )
            await run(config, Quiet(say))
    return list(Dataset(data).samples(RUN))


def teach(data: Path, samples: list[Sample], sizes: Sizes, say: Say) -> Path:
    """The model that every course begins with: one that has read its text, with the teacher's habits. Once it is
    published in ``data``, it is taken from there."""
    if weights.current(data) is None:
        say("a small model reads its text")
        model = pretrain(data / "text", sizes)
        say(f"teaching it, {sizes.warm_steps} steps on {len(samples)} recorded sessions")
        config = TrainConfig(
            data=data,
            model=str(model),
            steps=sizes.warm_steps,
            step_sessions=sizes.warm_step_sessions,
            hyper=Hyper(objective=Objective.SFT, lr=sizes.warm_lr, micro_tokens=MICRO_TOKENS),
        )
        report = learn(config, lambda batch, version: samples if batch == 0 else None, lambda line: None, first=samples)
        say(f"loss {report.steps[0].loss:.2f} to {report.steps[-1].loss:.3f}")
    taught = weights.current(data)
    assert taught is not None
    return taught.path
