"""The nodes of a Ray cluster that run sessions: a proxy on each, found dead or alive, started again, ended.

Proxies write into one data directory, each its own journal (``writer``), by the same path on every node: a folder that
they share, or one that each has for itself. Where the driver can see the journal of a node that died, it ends it: its
calls and sessions become ``interrupted``, and no other is touched.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from forge.client import ControlClient
from forge.policy.weights import Published
from forge.proxy.app import serve
from forge.proxy.config import TOKEN_FILE, WRITERS_MAX, ProxyConfig
from forge.rollouts.node import NodeProxy, here
from forge.rollouts.settings import SESSION_CPUS, RolloutConfig
from forge.run import context_tokens
from forge.stack import PROXY_START_S, PROXY_STOP_S, Control
from forge.storage.errors import ForgeError, Unavailable
from forge.storage.journal import journal_dir
from forge.storage.names import CATALOG
from forge.trainer.publish import adapter_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Say = Callable[[str], None]

INSTALL_S: Final = 1800.0
"""For a node to fetch the harnesses."""
REVIVALS: Final = 3
"""Starts of a node's proxy after its first; then the node counts as dead."""
GONE_S: Final = 30.0
GONE_POLL_S: Final = 0.2


@dataclass(slots=True, eq=False)
class Node:
    id: str
    address: str
    slots: int
    """Sessions that it has room for."""
    proxy: ProxyConfig
    client: ControlClient = field(init=False)
    control: Control = field(init=False)
    context_tokens: int | None = None
    actor: Any = None
    serving: Any = None
    """The generator that ends when its proxy does."""
    alive: bool = True
    busy: int = 0
    revivals: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def affinity(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(self.id, soft=False)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The policy server as the nodes reach it."""

    url: str
    key: str | None = None


class Nodes:
    def __init__(self, config: RolloutConfig, upstream: Upstream, say: Say) -> None:
        self._run = config.run
        self._upstream = upstream
        self._say = say
        self.all: list[Node] = []

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.all if node.alive]

    def find(self, node_id: str) -> Node | None:
        """One that lives."""
        return next((node for node in self.alive if node.id == node_id), None)

    async def start(self) -> None:
        """Raises for the first node that cannot serve, by its address."""
        self.all = [self._node(each, writer) for writer, each in enumerate(_usable())]
        try:
            async with asyncio.TaskGroup() as starting:
                for node in self.all:
                    starting.create_task(self._start(node))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._say(f"nodes      {', '.join(f'{node.address} ({node.slots})' for node in self.all)}")

    def _node(self, told: dict[str, Any], writer: int) -> Node:
        run, address = self._run, str(told["NodeManagerAddress"])
        proxy = ProxyConfig(
            data=run.data,
            run_id=run.run_id,
            writer=writer,
            upstreams=(self._upstream.url,),
            port=0,
            control_host="127.0.0.1" if told["NodeID"] == _own_node() else address,
            control_port=0,
            control_token_file=run.data / TOKEN_FILE,
            record=run.record,
            model=run.model,
            history=run.history,
            implicit=False,
            end_sessions=True,
            catalog=os.environ.get(CATALOG),
        )
        return Node(told["NodeID"], address, max(1, int(told["Resources"]["CPU"] / SESSION_CPUS)), proxy)

    async def _start(self, node: Node) -> None:
        import ray

        actor = ray.remote(NodeProxy).options(num_cpus=0, scheduling_strategy=node.affinity()).remote()
        async with asyncio.timeout(INSTALL_S + PROXY_START_S):
            there = await _told(node, actor.place.remote())
            mine = here()
            if (there.forge, there.python) != (mine.forge, mine.python):
                raise Unavailable(
                    f"node {node.address} has forge {there.forge} on Python {there.python}, the driver {mine.forge} on "
                    f"{mine.python}",
                    "install the same on every node",
                )
            await _told(node, actor.prepare.remote(replace(self._run, tasks=())))
            node.serving = actor.serve.options(num_returns="streaming").remote(node.proxy, self._upstream.key)
            node.control = await _told(node, _first(node.serving))
            node.actor = actor
            node.client = ControlClient(node.control.url, node.control.token)
            await node.client.__aenter__()
            node.context_tokens = await context_tokens(node.client)

    async def stop(self) -> None:
        """Running calls may end, everything is decoded."""
        self._say("stopping: the decoders finish the dataset")
        await asyncio.gather(*(self._stop(node) for node in self.alive if node.actor is not None))

    async def _stop(self, node: Node) -> None:
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(PROXY_STOP_S):
                await node.actor.stop.remote()
                async for _ in node.serving:
                    pass
        except (RayError, TimeoutError) as error:
            log.warning("the proxy of node %s did not end well: %s", node.address, error)
        await self._part(node)

    async def look(self, node: Node, error: Exception) -> None:
        """After a session broke off: is its node there still? A dead proxy is started again, if its node lives. What
        Ray says of the session's end may be newer than its list of nodes."""
        from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError

        gone = isinstance(error, (NodeDiedError, TaskUnschedulableError))
        async with node.lock:
            if not node.alive or (not gone and _lives(node) and await node.client.health()):
                return
            await _silent(node)
            await self._part(node)
            while not gone and node.revivals < REVIVALS and _lives(node):
                node.revivals += 1
                with suppress(ForgeError, RayError, TimeoutError):
                    await self._start(node)
                    self._say(f"node       {node.address}: its proxy died and was started again")
                    return
            node.alive = False
            self._say(f"node       {node.address} is lost; its sessions are interrupted")
            await self._end_journal(node)

    async def _part(self, node: Node) -> None:
        import ray

        await node.client.__aexit__(None, None, None)
        with suppress(ValueError):  # Ray has forgotten it
            ray.kill(node.actor)

    async def _end_journal(self, node: Node) -> None:
        config = node.proxy
        if not journal_dir(config.data, config.writer).exists():
            self._say(f"node       {node.address} has its journal for itself: run forge decode --once there")
            return
        ending = ProxyConfig(
            data=config.data, run_id=config.run_id, writer=config.writer, port=0, control_port=0, decoder=False,
            end_sessions=True,
        )  # fmt: skip
        try:
            async with serve(ending):
                pass
        except ForgeError as error:
            log.warning("the journal of node %s is not ended: %s", node.address, error.message)

    async def publish(self, published: Published, *, whole: bool = False) -> None:
        """Every proxy holds its calls, one has the policy servers load the weights, all others take over its word.
        ``whole``: not as an adapter, for those that are trained from now on are adapters of these."""
        first, *others = self.alive
        async with _held(others):
            for node in (first, *others):
                loads = node is first
                await node.client.publish(
                    version=published.version,
                    path=str(published.path.resolve()) if loads else None,
                    adapter=adapter_of(published) if loads and not whole else None,
                    digest=published.digest,
                    lineage=published.lineage,
                    by_trainer=not loads,
                )


@asynccontextmanager
async def _held(nodes: Sequence[Node]) -> AsyncIterator[None]:
    try:
        for node in nodes:
            await node.client.pause()
        yield
    finally:
        for node in nodes:
            await node.client.resume()


async def _silent(node: Node) -> None:
    """Until its proxy is gone: it outlives its node by a moment, and only then may its journal be ended by another."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GONE_S):
            while await node.client.health():
                await asyncio.sleep(GONE_POLL_S)


async def _first(serving: Any) -> Any:
    return await (await anext(serving))


async def _told(node: Node, answer: Any) -> Any:
    """What an actor answered; its error as one of this node's."""
    from ray.exceptions import RayError, RayTaskError

    try:
        return await answer
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ForgeError):
            raise type(cause)(f"node {node.address}: {cause.message}", cause.hint) from None
        raise
    except RayError as error:
        why = str(error).strip().splitlines()[0]
        raise Unavailable(f"node {node.address} runs no proxy: {why}", "look at its Ray logs: ray logs") from error


def addresses() -> tuple[str, list[str]]:
    """The driver's machine as the cluster knows it, and the other machines that sessions may run on."""
    import ray

    own = _own_node()
    mine = next(str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == own)
    return mine, sorted({str(each["NodeManagerAddress"]) for each in _usable()} - {mine})


def enough(learners: int) -> None:
    """Raises ``Unavailable`` where the learners would leave no room for a session: Ray would wait without an end."""
    have = sum(float(each["Resources"]["CPU"]) for each in _usable())
    if have < learners + SESSION_CPUS:
        raise Unavailable(
            f"the cluster has {have:g} CPUs; {learners} for the trainer leave no {SESSION_CPUS:g} for a session",
            "add a node, or lower --workers",
        )


def _own_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _usable() -> list[dict[str, Any]]:
    """Living nodes, the driver's own first. Raises ``Unavailable`` if there is none."""
    own, found = _own_node(), _living()
    if not found:
        raise Unavailable(
            f"no node of the cluster has {SESSION_CPUS:g} CPUs for a session",
            "ray start with --num-cpus, or add a node",
        )
    return sorted(found, key=lambda each: (each["NodeID"] != own, each["NodeManagerAddress"], each["NodeID"]))[
        :WRITERS_MAX
    ]


def _lives(node: Node) -> bool:
    return node.id in {each["NodeID"] for each in _living()}


def _living() -> list[dict[str, Any]]:
    """Nodes with room for a session, as Ray knows them."""
    import ray

    return [each for each in ray.nodes() if each["Alive"] and each["Resources"].get("CPU", 0) >= SESSION_CPUS]
