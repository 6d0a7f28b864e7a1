"""Keeps groups in the making and hands them to the trainer a batch at a time, none of them too old.

One rule covers both modes. With ``B`` groups to a batch, at batch ``n`` no more than ``(n + 1 + max_staleness) * B``
groups have been begun and not given up (AReaL, arXiv 2505.24298, equation 3). A staleness of 0 is the synchronous mode:
all groups of a batch are begun on the weights that learn from it, and while those are trained nothing runs. From 1 on
sessions go on while the trainer works. Whatever the count lets through is looked at again when it is taken: a group
with a token of weights older than that is dropped, counted, and another is begun in its place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from forge.rollouts.balance import pass_rate
from forge.rollouts.groups import Ended, Group, Work
from forge.run_report import UNREACHED
from forge.storage.errors import Unavailable, Untrainable
from forge.storage.records import Sample

TRIES: Final = 20
"""Groups given up or too old for each one that a batch wants; then the tasks, not chance, are the reason."""
STALE: Final = "stale"


def room(*, batch: int, begun: int, size: int, max_staleness: int) -> int:
    """Groups that may be begun now. ``batch``: the one that the trainer wants or works on, from 0; ``begun``: all that
    were begun, less those given up or dropped."""
    return max(0, (batch + 1 + max_staleness) * size - begun)


@dataclass(slots=True)
class Batch:
    """What was drawn for one batch, since the last one was taken."""

    number: int
    version: int
    groups: list[Group] = field(default_factory=list)
    """Chosen, the first that were finished."""
    given_up: list[Group] = field(default_factory=list)
    stale: list[Group] = field(default_factory=list)

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group.samples]

    @property
    def drawn(self) -> list[Ended]:
        """All sessions, chosen or not."""
        return [each for group in (*self.groups, *self.given_up, *self.stale) for each in group.drawn]

    @property
    def pass_rate(self) -> float | None:
        return pass_rate(each.result for each in self.drawn)

    @property
    def dropped(self) -> Counter[str]:
        """Groups that nothing is learned from, by reason."""
        return Counter(str(group.dropped) for group in self.given_up) + Counter({STALE: len(self.stale)})

    def counts(self) -> dict[str, object]:
        """For a line of metrics: over all sessions that were drawn, not only the chosen."""
        drawn = self.drawn
        rewards = [each.reward for each in drawn if each.reward is not None]
        chosen = [group.drawn[at].reward or 0.0 for group in self.groups for at in group.chosen]
        return {
            "batch": self.number,
            "version": self.version,
            "pass_rate": self.pass_rate,
            "reward_mean_drawn": sum(rewards) / len(rewards) if rewards else None,
            "reward_mean_chosen": sum(chosen) / len(chosen) if chosen else None,
            "groups": len(self.groups),
            "groups_balanced": sum(group.balanced for group in self.groups),
            "groups_dropped": dict(self.dropped),
            "sessions": len(drawn),
            "sessions_chosen": len(chosen),
            "sessions_not_selected": len(rewards) - len(chosen),
            "sessions_by_status": dict(Counter(str(each.status) for each in drawn)),
            "rewards_null": len(drawn) - len(rewards),
            "session_seconds": sum(each.seconds for each in drawn) / len(drawn) if drawn else None,
        }


class Scheduler:
    """``async with scheduling(...) as scheduler: await scheduler.batch(0, version)``"""

    def __init__(
        self,
        running: asyncio.TaskGroup,
        make: Callable[[Work], Awaitable[Group]],
        order: Iterator[Work],
        *,
        size: int,
        max_staleness: int,
        batches: int,
        first: int,
    ) -> None:
        self._running = running
        self._make = make
        self._order = order
        self._size = size
        self._max_staleness = max_staleness
        self._most = batches * size
        self._number = first
        self._begun = first * size
        self._making: set[asyncio.Task[None]] = set()
        self._ready: list[Group] = []
        self._given_up: list[Group] = []
        self._news = asyncio.Condition()
        self._over: BaseException | None = None

    async def batch(self, number: int, version: int) -> Batch:
        """The first groups that are finished, for weights of ``version``. Raises ``Untrainable`` where so many groups
        teach nothing that more would not either, and what ended the sessions where something ended them all."""
        found = Batch(number, version)
        async with self._news:
            self._number = number
            while True:
                self._sift(found)
                self._fill()
                if len(self._ready) >= self._size:
                    break
                self._check(found)
                await self._news.wait()
            found.groups, self._ready = self._ready[: self._size], self._ready[self._size :]
            found.given_up, self._given_up = self._given_up, []
        return found

    def end(self, why: BaseException) -> None:
        """Ends what runs; who waits for a batch is told ``why``."""
        self._over = self._over or why
        for task in self._making:
            task.cancel()

    async def told(self) -> None:
        async with self._news:
            self._news.notify_all()

    def _fill(self) -> None:
        free = room(batch=self._number, begun=self._begun, size=self._size, max_staleness=self._max_staleness)
        for _ in range(min(free, self._most - self._begun) if self._over is None else 0):
            self._begun += 1
            task = self._running.create_task(self._one(next(self._order)))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _one(self, work: Work) -> None:
        try:
            group = await self._make(work)
        except Exception as error:
            self._over = self._over or error
            await self.told()
            raise
        async with self._news:
            if group.dropped is None:
                self._ready.append(group)
            else:
                self._given_up.append(group)
                self._begun -= 1
                self._fill()
            self._news.notify_all()

    def _sift(self, found: Batch) -> None:
        """Takes out what has become too old; others are begun in its place."""
        fresh = [group for group in self._ready if not self._is_stale(group, found.version)]
        found.stale += [group for group in self._ready if self._is_stale(group, found.version)]
        self._begun -= len(self._ready) - len(fresh)
        self._ready = fresh

    def _is_stale(self, group: Group, version: int) -> bool:
        return group.version is not None and version - group.version > self._max_staleness

    def _check(self, found: Batch) -> None:
        if self._over is not None:
            raise self._over
        lost = len(self._given_up) + len(found.stale)
        if lost < TRIES * self._size:
            return
        found.given_up = self._given_up
        if all(each.status in UNREACHED for each in found.drawn):
            raise Unavailable(
                f"no session of {lost} groups was served: {_words(found)}",
                "look at the policy server, and at what the harnesses said: DATA/harness/RUN",
            )
        raise Untrainable(
            f"{lost} groups were drawn and {len(self._ready)} of {self._size} can be learned from: {_words(found)}",
            "take tasks that this policy wins at times; look at the sessions' status and rewards: forge sessions",
        )


@asynccontextmanager
async def scheduling(
    make: Callable[[Work], Awaitable[Group]],
    order: Iterator[Work],
    *,
    size: int,
    max_staleness: int,
    batches: int,
    first: int = 0,
) -> AsyncIterator[Scheduler]:
    """``size``: groups of a batch; ``batches``: of the whole run; ``first``: the number of the first one, where a run
    goes on. Leaving it ends what runs."""
    try:
        async with asyncio.TaskGroup() as running:
            scheduler = Scheduler(
                running, make, order, size=size, max_staleness=max_staleness, batches=batches, first=first
            )
            try:
                yield scheduler
            finally:
                scheduler.end(asyncio.CancelledError("the run was ended"))
                await scheduler.told()
    except ExceptionGroup as failures:  # every session says so, one is enough
        raise failures.exceptions[0] from None


def _words(found: Batch) -> str:
    status = Counter(str(each.status) for each in found.drawn)
    told = (", ".join(f"{n} {name}" for name, n in each.most_common()) for each in (found.dropped, status))
    return "; sessions: ".join(told)
