"""All workers together: told the same, and waited for together.

Owns the numbers of messages, and which workers count: one that has ended holds nobody up, for its calls have ended too,
and one that has come back is told everything before it serves. Does not know what it tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from forge.proxy.sessions.spec import Policy
from forge.proxy.tasks import Tasks
from forge.proxy.workers.child import WorkerProcess
from forge.proxy.workers.messages import Ack, Drain, Follow, Joined, Quiet, Strays
from forge.storage.journal import Position

MARGIN_S: Final = 10.0
"""Beyond the time that running calls may take, for a drain."""


class Crew:
    def __init__(self, workers: Sequence[WorkerProcess], says: Callable[[int], Follow], tasks: Tasks) -> None:
        """``says``: how everything stands now, under that number."""
        self.workers = workers
        self._says = says
        self._tasks = tasks
        self._numbers = count(1)
        self.strays: list[bytes] = []
        """Of each worker: sessions that live there against the rule."""

    async def start(self) -> dict[str, Policy]:
        """All processes; gives what was published last to each replica. Raises the error of a worker that cannot."""
        started = await asyncio.gather(*(worker.start() for worker in self.workers), return_exceptions=True)
        for each in started:
            if isinstance(each, BaseException):
                raise each
        joined = [each for each in started if isinstance(each, Joined)]
        self.strays = [each.strays for each in joined]
        for worker in self.workers:
            self._tasks.start(worker.run(self._again), "worker")
        return _newest(joined)

    async def serve(self) -> None:
        """Returns once all of them take calls."""
        await asyncio.gather(*map(self._lead, self.workers))

    def _again(self, worker: WorkerProcess) -> None:
        self._tasks.start(self._lead(worker), "lead")

    async def _lead(self, worker: WorkerProcess) -> None:
        learnt = worker.ask(Strays(number=next(self._numbers), of=self.strays))
        told = worker.ask(self._says(next(self._numbers)))
        first, second = await asyncio.gather(learnt, told)
        worker.up = first is not None and second is not None

    async def tell(self) -> dict[str, int]:
        """Returns once all go by how everything stands; gives the calls that run on each replica."""
        said = self._says(next(self._numbers))
        await asyncio.gather(*(worker.ask(said) for worker in self.workers))
        running: dict[str, int] = {}
        for worker in self.workers:
            for url, calls in worker.in_flight.items():
                running[url] = running.get(url, 0) + calls
        return running

    async def quiet(self, url: str) -> None:
        """Returns once no call runs on the replica, in any worker."""
        asked = Quiet(number=next(self._numbers), url=url)
        await asyncio.gather(*(worker.ask(asked, None) for worker in self.workers))

    async def drain(self, limit_s: float) -> dict[int, Position]:
        """No new calls; running ones may end within the limit; all workers end. Gives where each one's journal does."""
        asked = Drain(number=next(self._numbers))
        for worker in self.workers:
            worker.ending = True
        answers = await asyncio.gather(*(worker.ask(asked, limit_s + MARGIN_S) for worker in self.workers))
        await self.end()
        return {
            worker.writer: Position(*answer.cut)
            for worker, answer in zip(self.workers, answers, strict=True)
            if isinstance(answer, Ack) and answer.cut is not None
        }

    async def end(self) -> None:
        """All processes, now; those that serve cut their calls off."""
        await asyncio.gather(*(worker.end() for worker in self.workers))


def _newest(joined: Sequence[Joined]) -> dict[str, Policy]:
    """Each worker's journal says it; one that was down meanwhile may say less."""
    found: dict[str, Policy] = {}
    for each in joined:
        for url, policy in each.policies.items():
            if url not in found or (found[url].version or 0) < (policy.version or 0):
                found[url] = policy
    return found
