"""One worker: a whole proxy for the sessions that live in it, but for the policy servers, which its parent looks after.

Owns a process's life: it begins as told, serves once it follows, drains when asked, and ends when the parent has. Its
journal, sessions and doors are those of a proxy that is alone; so a worker that is killed loses what that would lose.
Signals are the parent's: whoever ends the parent ends its workers in order.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web

from forge.proxy import logs
from forge.proxy.app import compose
from forge.proxy.control.guard import guarded
from forge.proxy.control.health import HealthRoutes
from forge.proxy.control.server import ControlPlane
from forge.proxy.deps import Deps
from forge.proxy.door.server import DataPlane
from forge.proxy.listening import BACKLOG
from forge.proxy.process import settle
from forge.proxy.sessions.restore import Memory
from forge.proxy.sessions.spec import Policy
from forge.proxy.tasks import Tasks
from forge.proxy.upkeep import drain, end_calls, upkeep
from forge.proxy.workers.folder import control_path
from forge.proxy.workers.following import FollowingPool
from forge.proxy.workers.handover import Handover
from forge.proxy.workers.home import Homes, OwnIds
from forge.proxy.workers.link import Link
from forge.proxy.workers.messages import (
    Ack,
    Begin,
    Down,
    Drain,
    Follow,
    Joined,
    Quiet,
    Refused,
    Strays,
    config_of,
)
from forge.storage.errors import ForgeError, Unavailable

log = logging.getLogger(__name__)

PREDECESSOR_S: Final = 5.0
"""A worker whose parent was killed takes a moment to end its calls; until then it holds the journal."""
LOOK_S: Final = 0.05


async def work(link_fd: int, listener_fd: int) -> int:
    """The process, until its parent ends it or has ended; gives the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = await Link.over(socket.socket(fileno=link_fd))
    begin = await link.receive()
    if not isinstance(begin, Begin):
        return 0
    logs.configure(config_of(begin.config).log_format)
    try:
        async with AsyncExitStack() as stack:
            worker = await _made(begin, link, stack)
            await worker.follow(socket.socket(fileno=listener_fd), stack)
    except ForgeError as error:
        link.send(Refused(message=error.message, hint=error.hint, code=error.exit_code))
        await link.flush()
        return error.exit_code
    return 0


async def _made(begin: Begin, link: Link, stack: AsyncExitStack) -> Worker:
    homes = Homes(begin.workers)
    pool = FollowingPool(lambda url, reason: link.send(Down(url=url, reason=reason)))
    deps, memory = await _composed(begin, homes, pool, stack)
    deps.base_url, deps.ports = begin.base_url, begin.ports
    deps.vitals.disk_due = float("inf")  # the parent measures the disk for all
    tasks = await stack.enter_async_context(Tasks())
    link.send(
        Joined(
            policies=memory.policies,
            strays=homes.strays(begin.number, {state.session_id for state in memory.sessions}),
        )
    )
    return Worker(begin, link, homes, pool, deps, tasks, memory.policies)


async def _composed(begin: Begin, homes: Homes, pool: FollowingPool, stack: AsyncExitStack) -> tuple[Deps, Memory]:
    loop = asyncio.get_running_loop()
    until = loop.time() + PREDECESSOR_S
    while True:
        try:
            return await compose(config_of(begin.config), stack, pool=pool, session_ids=OwnIds(homes, begin.number))
        except Unavailable:
            if loop.time() >= until:
                raise
        await asyncio.sleep(LOOK_S)


@dataclass(slots=True)
class Worker:
    begin: Begin
    link: Link
    homes: Homes
    pool: FollowingPool
    deps: Deps
    tasks: Tasks
    published: dict[str, Policy]
    """What the journal remembers."""
    learnt: bool = False
    """It knows the strays: without them it would take some of them for its own."""
    serves: bool = False
    drained: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, listener: socket.socket, stack: AsyncExitStack) -> None:
        """Until the link ends: then the parent has drained this worker, or is gone, and nobody can tell any more what
        the policy servers serve, nor reach the sessions."""
        self.tasks.start(self._end_with_a_part(), "parts")
        while (message := await self.link.receive()) is not None:
            match message:
                case Strays():
                    self.homes.learn(message.of)
                    self.learnt = True
                    self._ack(message.number)
                case Follow():
                    self._apply(message)
                    if self.learnt and not self.serves:
                        await self._serve(listener, stack)
                    self._ack(message.number)
                case Quiet():
                    self.tasks.start(self._quiet(message), "quiet")
                case Drain():
                    self.tasks.start(self._drain(message), "drain")
                case _:
                    pass
        if not self.drained.is_set():
            await self._cut_off()

    async def _cut_off(self) -> None:
        """Calls end as those of a proxy that is stopped, and as fast: others wait for the journal, and the port."""
        await end_calls(self.deps, 0.0)
        self.deps.recorder.retry_pending()
        self.deps.recorder.cut()
        if not self.tasks.failed.is_set():
            log.warning("the proxy that this worker belongs to has ended, and its calls with it")
            shutil.rmtree(self.begin.folder, ignore_errors=True)  # the parent would have done it

    async def _end_with_a_part(self) -> None:
        """A background job that died takes the worker with it; its parent starts another."""
        await self.tasks.failed.wait()
        self.link.close()

    def _ack(self, number: int, cut: tuple[int, int] | None = None) -> None:
        self.link.send(Ack(number=number, in_flight=self.pool.in_flight(), cut=cut))

    def _apply(self, said: Follow) -> None:
        deps = self.deps
        self.pool.follow(said, draining=deps.draining)
        deps.registry.refuses = said.refuses
        for url, policy in said.published.items():
            replica = self.pool.get(url)
            if replica is not None and self.published.get(url) != policy:
                self.published[url] = policy
                deps.note_policy(replica)

    async def _serve(self, listener: socket.socket, stack: AsyncExitStack) -> None:
        deps, folder, number = self.deps, Path(self.begin.folder), self.begin.number
        routes = [*ControlPlane(deps, self.tasks).routes(), *HealthRoutes(deps).routes()]
        runner = guarded("localhost", self.begin.token, routes)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        path = control_path(folder, number)
        path.unlink(missing_ok=True)  # a worker before this one was killed
        await web.UnixSite(runner, str(path)).start()
        handover = Handover(folder, number, self.homes, deps.keys, self.tasks)
        doors = DataPlane(deps, handover.elsewhere).doors()
        stack.push_async_callback(doors.close)
        handover.receive(doors.door)
        stack.callback(handover.close)
        self.tasks.start(upkeep(deps), "upkeep")
        self.tasks.start(deps.vitals.run(lambda: deps.metrics.ended), "vitals")
        settle()
        await doors.listen(listener, BACKLOG)
        self.serves = True

    async def _quiet(self, asked: Quiet) -> None:
        replica = self.pool.get(asked.url)
        if replica is not None:
            await self.pool.quiet(replica)
        self._ack(asked.number)

    async def _drain(self, asked: Drain) -> None:
        cut = await drain(self.deps)
        self.drained.set()
        self._ack(asked.number, None if cut is None else (cut.segment, cut.offset))
