"""One group: sessions of a task in a harness are drawn until the rule can choose among them, or gives up.

Owns the order of draws within a group. A session that breaks off is a result without a reward; it never ends its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from forge.adapters.harnesses.base import HarnessAdapter
from forge.rollouts.balance import Balance, Choose, Draw, Dropped, Result
from forge.storage.records import Sample, SessionStatus
from forge.tasks import Task


@dataclass(frozen=True, slots=True)
class Work:
    """A group to be made."""

    task: Task
    adapter: HarnessAdapter
    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A session that was drawn."""

    session_id: str | None
    """None where it could not even be opened."""
    status: SessionStatus
    reward: float | None = None
    samples: Sequence[Sample] = ()
    seconds: float = 0.0
    node: str | None = None
    """Where it ran, and its proxy is."""

    @property
    def result(self) -> Result:
        return Result(self.reward, any(sample.truncated for sample in self.samples))


@dataclass(frozen=True, slots=True)
class Group:
    work: Work
    drawn: tuple[Ended, ...]
    chosen: tuple[int, ...] = ()
    """Places in ``drawn``."""
    balanced: bool = False
    dropped: Dropped | None = None
    """Why nothing was chosen."""

    @property
    def samples(self) -> list[Sample]:
        return [sample for at in self.chosen for sample in self.drawn[at].samples]

    @property
    def version(self) -> int | None:
        """The lowest that sampled a token of the chosen sessions; None where none is known."""
        known = [s.policy_version_min for s in self.samples if s.policy_version_min is not None]
        return min(known, default=None)


class Draws(Protocol):
    """Where sessions run."""

    async def session(self, work: Work, index: int) -> Ended:
        """Waits for a place. Raises only for what would hit every session."""

    async def not_selected(self, sessions: Sequence[Ended]) -> None:
        """These were drawn, and others were chosen."""


async def draw(draws: Draws, rule: Balance, work: Work) -> Group:
    drawn: list[Ended] = []
    while isinstance(said := rule.decide([each.result for each in drawn]), Draw):
        async with asyncio.TaskGroup() as group:
            first = len(drawn)
            running = [group.create_task(draws.session(work, first + at)) for at in range(said.count)]
        drawn += [each.result() for each in running]
    chosen = said.indices if isinstance(said, Choose) else ()
    await draws.not_selected([each for at, each in enumerate(drawn) if at not in chosen and each.reward is not None])
    if isinstance(said, Choose):
        return Group(work, tuple(drawn), chosen, balanced=said.balanced)
    return Group(work, tuple(drawn), dropped=said.reason)


def endless(
    tasks: Sequence[Task], adapters: Sequence[HarnessAdapter], prefix: str, seed: int, skip: int = 0
) -> Iterator[Work]:
    """Every task in every harness once in a round, each round in an order of its own; the ``skip`` first are left out.

    The same seed gives the same order. ``prefix``: of group ids. A group is a task *in one harness*, for another one
    gives the model another prompt and other tools.
    """
    pairs = [(task, adapter) for task in tasks for adapter in adapters]
    number = 0
    while True:
        order = list(pairs)
        Random(f"{seed}/{number // len(pairs)}").shuffle(order)
        for task, adapter in order:
            if number >= skip:
                yield Work(task, adapter, f"{prefix}/{task.id}/{adapter.name}/{number}")
            number += 1
