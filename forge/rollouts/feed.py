"""The trainer's source of samples: publishes what it has learned, then gives it the next batch of fresh groups.

The loop calls from its own thread; sessions run on the event loop that made this. Every batch leaves a line in
``rollouts.jsonl``: what was drawn, chosen and dropped, over all sessions. A run that goes on drops the lines of the
batches that it draws anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from forge.policy.weights import current
from forge.rollouts.nodes import Nodes
from forge.rollouts.scheduler import Batch, Scheduler
from forge.storage.records import Sample
from forge.trainer.metrics import keep


class Feed:
    def __init__(
        self,
        data: Path,
        nodes: Nodes,
        scheduler: Scheduler,
        *,
        first: int,
        batches: int,
        served: int,
        lines: Path,
        say: Callable[[str], None],
    ) -> None:
        """``first``: the batch that is drawn next; ``served``: the version that the policy servers have; ``lines``:
        where the metrics go."""
        self._data = data
        self._nodes = nodes
        self._scheduler = scheduler
        self._batches = batches
        self._served = served
        self._lines = lines
        self._say = say
        self._loop = asyncio.get_running_loop()
        keep(lines, lambda line: line["batch"] < first)

    def __call__(self, batch: int, version: int) -> list[Sample] | None:
        """As ``forge.trainer.loop.Source``."""
        if batch >= self._batches:
            return None
        return asyncio.run_coroutine_threadsafe(self._next(batch, version), self._loop).result()

    async def _next(self, batch: int, version: int) -> list[Sample]:
        began = time.monotonic()
        if version != self._served:
            published = current(self._data)
            assert published is not None
            assert published.version == version
            await self._nodes.publish(published)
            self._served = version
        found = await self._scheduler.batch(batch, version)
        self._note(found, time.monotonic() - began)
        return found.samples

    def _note(self, found: Batch, seconds: float) -> None:
        counts = found.counts()
        line = {"time": time.time(), "seconds": seconds, "nodes": len(self._nodes.alive), **counts}
        with self._lines.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
        self._say(_told(found, seconds))


def _told(found: Batch, seconds: float) -> str:
    counts = found.counts()
    rate = "unknown" if found.pass_rate is None else f"{found.pass_rate:.0%}"
    dropped = ", ".join(f"{count} {why}" for why, count in found.dropped.items())
    return (
        f"batch {found.number}    {len(found.groups)} groups, {counts['sessions']} sessions drawn, "
        f"pass rate {rate}, {seconds:.0f} s{f'; dropped: {dropped}' if dropped else ''}"
    )
