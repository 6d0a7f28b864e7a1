"""What a run leaves of the batches that it drew, also one that goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forge.rollouts.feed import Feed
from forge.rollouts.scheduler import Batch
from forge.trainer.metrics import read


class Drawing:
    """A scheduler whose batches are empty."""

    async def batch(self, number: int, version: int) -> Batch:
        return Batch(number, version)


async def drawn(lines: Path, first: int, until: int) -> None:
    nodes: Any = SimpleNamespace(alive=[])
    scheduler: Any = Drawing()
    feed = Feed(lines.parent, nodes, scheduler, first=first, batches=3, served=0, lines=lines, say=lambda line: None)
    for batch in range(first, until):
        await asyncio.to_thread(feed, batch, 0)


async def test_a_batch_that_is_drawn_anew_has_one_line(tmp_path: Path) -> None:
    """The run died after its third batch was drawn, and its last checkpoint is from after the first."""
    lines = tmp_path / "rollouts.jsonl"
    await drawn(lines, 0, 3)
    first = read(lines)[0]
    with lines.open("ab") as file:
        file.write(b'{"batch":3,"ti')  # it was killed while it wrote
    await drawn(lines, 1, 3)
    assert [line["batch"] for line in read(lines)] == [0, 1, 2]
    assert read(lines)[0] == first
