"""``forge train --tasks``: the whole loop. A policy server, a proxy on every node, sessions, the trainer, new weights.

Owns the order in which these are started and ended. The trainer runs in a thread, because it blocks while it learns;
sessions go on meanwhile, as far as ``--max-staleness`` lets them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from forge.policy.weights import Published, weight_digest
from forge.proxy.config import is_loopback
from forge.rollouts.feed import Feed
from forge.rollouts.groups import draw, endless
from forge.rollouts.nodes import Nodes, Upstream, addresses, enough
from forge.rollouts.scheduler import Scheduler, scheduling
from forge.rollouts.sessions import Sessions
from forge.rollouts.settings import RolloutConfig
from forge.scratch import scratch
from forge.stack import embedded_policy, reached
from forge.storage.errors import BadInput
from forge.trainer.cluster import cluster
from forge.trainer.config import TrainConfig
from forge.trainer.loop import Seen, TrainReport, learn
from forge.trainer.metrics import ROLLOUTS
from forge.trainer.start import Base, start_of

Say = Callable[[str], None]


async def train(config: TrainConfig, rollouts: RolloutConfig, say: Say, seen: Seen) -> TrainReport:
    """Until all batches are learned from. On cancellation open sessions are closed as interrupted, and a step that
    runs comes to its end."""
    run = rollouts.run
    run.runner.check()
    if run.policy is not None:
        await reached(run.policy)
    start = start_of(config, (), say)
    served = _served(start.base, start.version, run.data)
    for folder in (run.kept, start.out):
        folder.mkdir(parents=True, exist_ok=True)
    with scratch("train") as folder, cluster(config.ray):
        async with _policy(rollouts, served, folder, say) as upstream, _serving(rollouts, upstream, say) as nodes:
            if run.policy is not None:
                await nodes.publish(_published(served), whole=start.version is None)
            sessions = Sessions(rollouts, nodes, folder)
            # A run that goes on draws groups anew that it had begun before: they are others, of another name.
            prefix = f"{run.run_id}/{secrets.token_hex(3)}"
            order = endless(run.tasks, run.adapters, prefix, rollouts.seed, skip=start.batch * rollouts.groups)
            async with scheduling(
                lambda work: draw(sessions, rollouts.balance, work),
                order,
                size=rollouts.groups,
                max_staleness=rollouts.max_staleness,
                batches=rollouts.batches,
                first=start.batch,
            ) as scheduler:
                feed = Feed(
                    run.data, nodes, scheduler, first=start.batch, batches=rollouts.batches, served=served.version,
                    lines=start.out / ROLLOUTS, say=say,
                )  # fmt: skip
                return await _learning(replace(config, out=start.out, drawn_anew=True), feed, scheduler, say, seen)


async def _learning(config: TrainConfig, feed: Feed, scheduler: Scheduler, say: Say, seen: Seen) -> TrainReport:
    learning = asyncio.ensure_future(asyncio.to_thread(learn, config, feed, say, seen=seen))
    try:
        return await asyncio.shield(learning)
    except asyncio.CancelledError as ended:
        # The thread cannot be cancelled: it ends when it asks for more, and Ray must be there until then.
        scheduler.end(ended)
        await scheduler.told()
        with suppress(BaseException):
            await learning
        raise


def _served(base: Base, version: int | None, data: Path) -> Base:
    """What the policy servers begin with: the base, or the weights that a run goes on with."""
    if version is None or version == base.version:
        return base
    return Base(data / "policy" / str(version), version, base.lineage)


def _published(served: Base) -> Published:
    return Published(served.version, served.path, weight_digest(served.path), served.lineage)


@asynccontextmanager
async def _policy(rollouts: RolloutConfig, served: Base, folder: Path, say: Say) -> AsyncIterator[Upstream]:
    run = rollouts.run
    own, others = addresses()
    enough(rollouts.learners)
    if run.policy is not None:
        host = urlsplit(run.policy).hostname or ""
        if others and is_loopback(host):
            raise BadInput(
                f"the policy server {run.policy} is on loopback, where node {others[0]} cannot reach it",
                "let it listen on an address of its machine, and give that: --policy http://HOST:PORT",
            )
        yield Upstream(run.policy)
        return
    async with AsyncExitStack() as started:
        say("starting the embedded policy server")
        host = own if others else "127.0.0.1"
        url, key_file = await embedded_policy(served, run.kept / "policy.log", folder, started, host=host)
        yield Upstream(url, key_file.read_text())


@asynccontextmanager
async def _serving(rollouts: RolloutConfig, upstream: Upstream, say: Say) -> AsyncIterator[Nodes]:
    nodes = Nodes(rollouts, upstream, say)
    try:
        await nodes.start()
        yield nodes
    finally:
        await nodes.stop()
