"""Background jobs with an owner: started under it, ended by it, never silently dead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class Tasks:
    """``async with Tasks() as tasks``: jobs end with the block. Unlike a ``TaskGroup`` it leaves the block's own
    exceptions as they are; a job that fails is logged and shows in ``failed``."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self.failed = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def finish(self, job: Coroutine[Any, Any, T]) -> T:
        """Awaits the job, which runs to its end also when the caller does not wait for it."""
        task = asyncio.get_running_loop().create_task(job)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    def start(self, job: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(job, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("background job %s failed", task.get_name(), exc_info=error)
            self.failed.set()
