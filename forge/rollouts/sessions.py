"""Sessions on the nodes: each gets a place, is opened there, runs as a Ray task, and comes back with its samples.

A worker, a node or a proxy that dies ends its own sessions as ``interrupted`` and no others; the driver says so to the
proxy, where one is left to be told. Implements ``groups.Draws``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from forge.client import Closed, Ticket
from forge.graders import Graders
from forge.launching import Launching
from forge.rollout import CLOSE_S, Rollouts
from forge.rollouts.groups import Ended, Work
from forge.rollouts.nodes import Node, Nodes
from forge.rollouts.settings import SESSION_CPUS, RolloutConfig
from forge.rollouts.task import Assignment, packed, rollout
from forge.run_report import SessionReport
from forge.storage.errors import ForgeError, Unavailable
from forge.storage.records import Selection, SessionStatus

log = logging.getLogger(__name__)

OVERTIME_S: Final = 900.0
"""Beyond the limits of harness and grader, for a worker to start and a session to be closed."""

WHY_MAX: Final = 300
"""Characters: Ray's own words go on for paragraphs."""


class Sessions:
    def __init__(self, config: RolloutConfig, nodes: Nodes, scratch: Path) -> None:
        import ray

        run = config.run
        self._config = run
        self._nodes = nodes
        self._scratch = scratch
        self._places = asyncio.Condition()
        self._free = run.concurrency
        self._graders = Graders(run.runner, scratch / "code")
        self._graders.gather(run.tasks, run.modules)
        self._shared = (ray.put(replace(run, tasks=())), ray.put(packed(scratch / "code")))
        self._task = ray.remote(rollout)

    async def session(self, work: Work, index: int) -> Ended:
        from ray.exceptions import RayError

        async with self._placed() as node:
            ticket: Ticket | None = None
            try:
                ticket = await self._opener(node).open(work.task, work.adapter, index, work.group_id)
                report, closed = await self._run(node, ticket, work, index)
            except (RayError, ForgeError, TimeoutError) as error:
                return await self._broken(node, ticket, error)
        return Ended(
            session_id=report.session_id,
            status=report.status,
            reward=closed.session.reward,
            samples=closed.samples,
            seconds=report.seconds,
            node=node.id,
        )

    @asynccontextmanager
    async def _placed(self) -> AsyncIterator[Node]:
        """A place on the node that has most of its places free. Raises ``Unavailable`` when no node is left."""
        async with self._places:
            while not (open_ones := [n for n in self._nodes.alive if n.busy < n.slots and self._free]):
                if not self._nodes.alive:
                    raise Unavailable("no node is left to run sessions on", "look at the cluster: ray status")
                await self._places.wait()
            node = min(open_ones, key=lambda n: n.busy / n.slots)
            node.busy += 1
            self._free -= 1
        try:
            yield node
        finally:
            node.busy -= 1
            self._free += 1
            async with self._places:
                self._places.notify_all()

    def _opener(self, node: Node) -> Rollouts:
        launching = Launching(self._config, node.context_tokens, None)
        return Rollouts(self._config, node.client, self._graders, launching, scratch=self._scratch)

    async def _run(self, node: Node, ticket: Ticket, work: Work, index: int) -> tuple[SessionReport, Closed]:
        import ray
        from ray.exceptions import RayError

        given = Assignment(
            ticket=ticket,
            control=node.control,
            task=work.task,
            adapter=work.adapter,
            index=index,
            context_tokens=node.context_tokens,
        )
        options = {"num_cpus": SESSION_CPUS, "max_retries": 0, "scheduling_strategy": node.affinity()}
        running = self._task.options(**options).remote(*self._shared, given)
        grading = work.task.grader.timeout if work.task.grader is not None else 0.0
        try:
            async with asyncio.timeout(self._config.seconds + grading + OVERTIME_S):
                found: tuple[SessionReport, Closed] = await running
                return found
        except (asyncio.CancelledError, TimeoutError):
            ray.cancel(running)
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await running
            raise

    async def _broken(self, node: Node, ticket: Ticket | None, error: Exception) -> Ended:
        session_id, why = ticket.session_id if ticket is not None else None, _why(error)
        log.warning("session broke off: node=%s session_id=%s %s", node.address, session_id, why)
        await self._nodes.look(node, error)
        async with self._places:
            self._places.notify_all()
        lost = Ended(session_id=session_id, status=SessionStatus.INTERRUPTED, node=node.id)
        if session_id is None or not node.alive:
            return lost
        try:
            closed = await node.client.close_session(
                session_id, status=lost.status.value, reward=None, error=why, grace=0.0
            )
        except ForgeError as error:
            log.warning("session not closed: session_id=%s %s", session_id, error.message)
            return lost
        # It may have been closed already, graded and all, and only the answer was lost.
        return replace(
            lost,
            status=SessionStatus(closed.session.status),
            reward=closed.session.reward,
            samples=closed.samples,
        )

    async def not_selected(self, sessions: Sequence[Ended]) -> None:
        await asyncio.gather(*(self._not_selected(each) for each in sessions))

    async def _not_selected(self, ended: Ended) -> None:
        node = self._nodes.find(ended.node or "")
        if node is None or ended.session_id is None:
            return
        try:
            await node.client.select(ended.session_id, Selection.NOT_SELECTED)
        except ForgeError as error:  # its label is missing, the trainer has not learned from it all the same
            log.warning("not marked: session_id=%s %s", ended.session_id, error.message)


def _why(error: Exception) -> str:
    """One line for a session's row."""
    cause: Any = getattr(error, "cause", None) or error
    if isinstance(cause, ForgeError):
        return cause.message
    return f"{type(cause).__name__}: {next(iter(str(cause).strip().splitlines()), '')}"[:WHY_MAX]
