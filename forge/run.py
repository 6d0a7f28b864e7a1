"""``forge run``: every task, ``group_size`` times, in each harness, recorded and graded.

Owns the order of things and nothing else: what a session is lies in ``rollout``, what it talks to in ``stack``. One
session's failure is that session's status; only what would hit all of them (no harness, no confinement, no policy, a
data directory in use) is raised, before the first session is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Protocol

from forge.adapters.harnesses.base import HarnessAdapter
from forge.adapters.harnesses.packages import cache_folder
from forge.client import ControlClient
from forge.graders import Graders
from forge.intercept import environment
from forge.intercept.mitmproxy import Interception, interception
from forge.launching import Launching
from forge.proxy.config import Record
from forge.rollout import Rollouts
from forge.run_config import RunConfig
from forge.run_report import RunReport, SessionReport
from forge.scratch import scratch as temporary
from forge.stack import serving
from forge.tasks import Task


class Watch(Protocol):
    """Who looks on while it runs."""

    def say(self, text: str) -> None: ...

    def begun(self, task: Task, rollout_index: int) -> None: ...

    def done(self, report: SessionReport) -> None: ...


async def run(config: RunConfig, watch: Watch) -> RunReport:
    """Raises ``ForgeError`` for what hits all sessions; on cancellation open sessions are closed as interrupted."""
    config.runner.check()
    for adapter in config.adapters:
        await asyncio.to_thread(adapter.install, cache_folder(), watch.say)
    if config.intercept is not None:
        await asyncio.to_thread(environment.install, watch.say)
    with temporary("run") as scratch:
        graders = Graders(config.runner, scratch / "code")
        graders.gather(config.tasks, config.modules)
        config.kept.mkdir(parents=True, exist_ok=True)
        async with (
            serving(config, scratch, watch.say) as control,
            ControlClient(control.url, control.token) as client,
            _interception(config, client, scratch / "mitmproxy", watch) as interception,
        ):
            launching = Launching(config, await context_tokens(client), interception)
            sessions = await _all(config, Rollouts(config, client, graders, launching, scratch=scratch), watch)
    return RunReport(run_id=config.run_id, data=config.data, strict=config.record is Record.STRICT, sessions=sessions)


@asynccontextmanager
async def _interception(
    config: RunConfig, client: ControlClient, folder: Path, watch: Watch
) -> AsyncIterator[Interception | None]:
    """One for all sessions, where the run asks for it."""
    if config.intercept is None:
        yield None
        return
    log = config.kept / "intercept.log"
    async with interception(client, config.intercept, folder=folder, log=log, say=watch.say) as there:
        yield there


async def _all(config: RunConfig, rollouts: Rollouts, watch: Watch) -> list[SessionReport]:
    slots = asyncio.Semaphore(config.concurrency)

    async def one(task: Task, adapter: HarnessAdapter, index: int) -> SessionReport:
        async with slots:
            watch.begun(task, index)
            report = await rollouts.one(task, adapter, index)
            watch.done(report)
            return report

    # Harnesses take turns, so that a policy that changes while a run goes on changes for all of them alike.
    attempts = product(config.tasks, range(config.group_size), config.adapters)
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(task, adapter, index)) for task, index, adapter in attempts]
    except ExceptionGroup as failures:  # the proxy is gone: every session says so, one is enough
        raise failures.exceptions[0] from None
    return [each.result() for each in running]


async def context_tokens(client: ControlClient) -> int | None:
    """What every policy server takes; None where none says."""
    told = [upstream["abilities"]["max_model_len"] for upstream in await client.upstreams()]
    return min((each for each in told if each is not None), default=None)
