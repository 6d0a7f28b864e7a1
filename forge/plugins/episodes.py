"""Sessions for a trainer that owns its loop: opened in its group, run in a harness, graded, closed; their samples.

The same ``Rollouts`` as ``forge run``, against a proxy that already runs. A session that fails is one without rows; it
never takes the trainer's step with it (field case 171).
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from forge.adapters.harnesses.packages import cache_folder
from forge.adapters.trainers.rows import Needs, Row, rows_of
from forge.client import Closed, ControlClient
from forge.graders import Graders
from forge.launching import Launching
from forge.plugins.settings import Settings
from forge.rollout import Rollouts
from forge.run import context_tokens
from forge.run_report import SessionReport
from forge.storage.records import Call, Purpose
from forge.tasks import Task

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """One session that the trainer wants."""

    task: Task
    group_id: str
    index: int
    """Of the rollout within its group."""


@dataclass(frozen=True, slots=True)
class Episode:
    report: SessionReport
    closed: Closed
    rows: Sequence[Row]


class Episodes:
    """``async with Episodes(settings, needs) as episodes: await episodes.one(asked, sampling)``"""

    def __init__(self, settings: Settings, needs: Needs) -> None:
        self._settings = settings
        self._needs = needs
        self._adapter = settings.adapter
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        config = self._settings.run_config({})
        config.runner.check()
        await asyncio.to_thread(self._adapter.install, cache_folder(), lambda text: log.info("%s", text))
        async with AsyncExitStack() as entered:
            self._scratch = Path(entered.enter_context(tempfile.TemporaryDirectory(prefix="forge-plugin-")))
            token_file = Path(self._settings.control_token_file)
            self.client = await entered.enter_async_context(
                ControlClient.from_token_file(self._settings.control, token_file)
            )
            self._graders = Graders(config.runner, self._scratch / "code")
            self._graders.gather(config.tasks, config.modules)
            self._context_tokens = await context_tokens(self.client)
            self._entered = entered.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._entered.aclose()

    async def one(self, asked: Asked, sampling: Mapping[str, Any]) -> Episode:
        config = self._settings.run_config(sampling)
        launching = Launching(config, self._context_tokens, None)
        rollouts = Rollouts(config, self.client, self._graders, launching, scratch=self._scratch)
        async with self._slots:
            report, closed = await rollouts.closed(asked.task, self._adapter, asked.index, group_id=asked.group_id)
        rows, left = rows_of(
            closed.samples,
            self._needs,
            unrewarded=asked.task.grader is None,  # then the trainer has a reward of its own
            evaluation=config.purpose is Purpose.EVAL,
        )
        if left or not rows:
            log.warning(
                "session %s: %s (%s), %d rows, left out: %s",
                report.session_id, report.status.value, report.error or report.reward_reason, len(rows), dict(left),
            )  # fmt: skip
        return Episode(report, closed, rows)

    async def many(self, wanted: Sequence[Asked], sampling: Mapping[str, Any]) -> list[Episode]:
        """In the order they were asked for."""
        try:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(self.one(asked, sampling)) for asked in wanted]
        except ExceptionGroup as failures:  # the proxy is gone: every session says so, one is enough
            raise failures.exceptions[0] from None
        return [each.result() for each in running]

    async def calls(self, episode: Episode) -> list[Call]:
        return await self.client.calls(episode.closed.session.session_id)


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end from code that is not async, also where a loop already runs in this thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="forge") as pool:
        return pool.submit(asyncio.run, work).result()
