"""Sessions on the nodes of a real Ray cluster; workers, proxies and nodes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from forge.policy.weights import Published
from forge.rollouts.balance import Balance
from forge.rollouts.groups import Ended, Group, Work, draw
from forge.rollouts.nodes import Nodes, Upstream
from forge.rollouts.sessions import Sessions
from forge.rollouts.settings import RolloutConfig
from forge.run_config import RunConfig
from forge.runners import find
from forge.storage.dataset import Dataset
from forge.tasks import Grader, Task
from tests.engine import ScriptedEngine
from tests.rollouts.conftest import RayCluster
from tests.run.fake import FakeHarness

pytestmark = [pytest.mark.ray, pytest.mark.process]

WAIT_S = 120.0
"""Bound of every wait: workers take seconds to start here, and tens of seconds when other work runs beside them."""
TASK = Task(id="t", prompt="say hi", grader=Grader(command="test -e made"))
WORKS = "print(call()); pathlib.Path('made').touch()"


@dataclass
class Running:
    engine: ScriptedEngine
    nodes: Nodes
    sessions: Sessions
    config: RolloutConfig
    said: list[str] = field(default_factory=list)

    @property
    def data(self) -> Path:
        return self.config.run.data

    async def many(self, count: int) -> Group:
        """So many sessions at once, none chosen."""
        rule = Balance(size=count, stride=count, maximum=count)
        return await draw(self.sessions, rule, Work(TASK, self.config.run.adapters[0], "g"))

    async def waiting(self, count: int) -> None:
        """So many calls are at the policy server, which answers none of them."""
        async with asyncio.timeout(WAIT_S):
            while len(self.engine.served) < count:
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running(tmp: Path, script: str = WORKS, task: Task = TASK) -> AsyncIterator[Running]:
    run = RunConfig(
        adapters=(FakeHarness(script),), tasks=(task,), runner=find("local"), data=tmp / "data", run_id="r",
        seconds=WAIT_S, concurrency=4,
    )  # fmt: skip
    config, said = RolloutConfig(run=run), list[str]()
    async with ScriptedEngine() as engine:
        nodes = Nodes(config, Upstream(engine.url), said.append)
        await nodes.start()
        engine.served.clear()
        (tmp / "scratch").mkdir()
        try:
            yield Running(engine, nodes, Sessions(config, nodes, tmp / "scratch"), config, said)
        finally:
            engine.gate.open()
            await nodes.stop()


def statuses(drawn: tuple[Ended, ...]) -> Counter[str]:
    return Counter(str(each.status) for each in drawn)


async def test_sessions_run_on_every_node_and_make_one_dataset(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """And new weights reach every proxy, while the policy server loads them once."""
    second = ray_cluster.add()
    try:
        async with running(tmp_path) as r:
            group = await r.many(4)
            assert statuses(group.drawn) == {"completed": 4}
            assert Counter(Counter(each.node for each in group.drawn).values()) == {2: 2}
            assert all(each.reward == 1.0 and len(each.samples) == 1 for each in group.drawn)
            r.engine.admin.clear()
            weights = tmp_path / "weights"
            r.engine.weight_digest = r.engine.digest_of(str(weights))
            await r.nodes.publish(Published(5, weights, r.engine.weight_digest, "main"))
            assert [path for path, _ in r.engine.admin].count("/collective_rpc") == 1
            again = await r.many(2)
            assert [each.samples[0].policy_version_min for each in again.drawn] == [5, 5]
            assert len({each.node for each in again.drawn}) == 2
    finally:
        ray_cluster.remove(second)
    dataset = Dataset(r.data)
    assert {(s.status, s.reward, s.reward_author, s.selection) for s in dataset.sessions()} == {
        ("completed", 1.0, "command test -e made", "not_selected")
    }
    assert all(s.reward_us is not None for s in dataset.sessions())
    assert {len(dataset.sessions(writer=writer)) for writer in (0, 1)} == {3}
    assert {(s.reward, s.trainable, s.untrainable_reason) for s in dataset.samples()} == {(1.0, False, "not_selected")}
    assert list((r.data / "harness" / "r").glob("*/stdout"))


async def test_a_killed_worker_ends_its_own_session_and_no_other(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """Field case 171: one lost transport ends one session. Its harness goes with it: the one that still waited for an
    answer is gone when the answer comes."""
    async with running(tmp_path) as r:
        r.engine.gate.shut()
        drawing = asyncio.ensure_future(r.many(3))
        await r.waiting(3)
        os.kill(ray_cluster.pids("rollout")[0], signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            while not (broken := [s for s in ended_of(r) if s == "interrupted"]):
                await asyncio.sleep(0.05)
        assert len(broken) == 1
        r.engine.gate.open()
        group = await drawing
        assert statuses(group.drawn) == {"completed": 2, "interrupted": 1}
        assert [each.reward for each in group.drawn if each.status == "interrupted"] == [None]
    rows = {s.status: s for s in Dataset(r.data).sessions()}
    assert "WorkerCrashed" in (rows["interrupted"].error or "")
    assert (rows["interrupted"].reward_status, rows["completed"].reward_status) == ("null", "graded")
    calls = Counter((c.session_id, c.status) for c in Dataset(r.data).calls())
    assert calls[rows["interrupted"].session_id, "ok"] == 0


def ended_of(r: Running) -> list[str]:
    (node,) = r.nodes.alive
    return [str(s.status) for s in Dataset(node.proxy.data).sessions() if s.status != "open"]


async def test_a_killed_proxy_ends_the_sessions_of_its_node_and_is_started_again(
    ray_cluster: RayCluster, tmp_path: Path
) -> None:
    async with running(tmp_path) as r:
        r.engine.gate.shut()
        drawing = asyncio.ensure_future(r.many(2))
        await r.waiting(2)
        (proxy,) = ray_cluster.pids("NodeProxy")
        os.kill(proxy, signal.SIGKILL)
        r.engine.gate.open()
        assert statuses((await drawing).drawn) == {"interrupted": 2}
        assert any("started again" in text for text in r.said)
        assert statuses((await r.many(2)).drawn) == {"completed": 2}
    assert Counter(s.status for s in Dataset(r.data).sessions()) == {"interrupted": 2, "completed": 2}


@pytest.mark.parametrize("listed", [True, False])
async def test_a_node_that_ray_has_lost_is_lost_though_its_proxy_still_answers(
    ray_cluster: RayCluster, tmp_path: Path, *, listed: bool
) -> None:
    """A proxy outlives its node by a moment; its journal is ended by another only when it is gone. Sessions may hear of
    a lost node before Ray's list does."""
    from ray.exceptions import NodeDiedError

    async with running(tmp_path) as r:
        (node,) = r.nodes.alive
        if not listed:
            node.id = "0" * len(node.id)
        looking = asyncio.ensure_future(r.nodes.look(node, NodeDiedError("lost") if listed else TimeoutError()))
        for _ in range(5):
            assert await node.client.health()
        assert not looking.done()
        (proxy,) = ray_cluster.pids("NodeProxy")
        os.kill(proxy, signal.SIGKILL)
        await looking
        assert not node.alive
        assert any("is lost" in text for text in r.said)


async def test_a_killed_node_ends_its_sessions_and_no_others(ray_cluster: RayCluster, tmp_path: Path) -> None:
    second = ray_cluster.add()
    async with running(tmp_path) as r:
        r.engine.gate.shut()
        drawing = asyncio.ensure_future(r.many(4))
        await r.waiting(4)
        ray_cluster.remove(second, graceful=False)
        async with asyncio.timeout(WAIT_S):
            while len(r.nodes.alive) > 1:
                await asyncio.sleep(0.1)
        r.engine.gate.open()
        group = await drawing
        assert statuses(group.drawn) == {"completed": 2, "interrupted": 2}
        assert {each.node for each in group.drawn if each.status == "completed"} == {r.nodes.alive[0].id}
        assert statuses((await r.many(2)).drawn) == {"completed": 2}
    assert Counter(s.status for s in Dataset(r.data).sessions()) == {"interrupted": 2, "completed": 4}
    calls = Counter(c.status for c in Dataset(r.data).calls())
    assert calls["ok"] == 4
    assert calls["interrupted"] + calls["aborted"] == 2, "its harness may have died before its proxy did"
