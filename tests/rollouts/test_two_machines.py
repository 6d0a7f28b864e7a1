"""Two machines, as far as the network goes: a Ray head and a worker in two network namespaces, joined by a cable."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge.storage.dataset import Dataset

pytestmark = [pytest.mark.ray, pytest.mark.process]

LIMIT_S = 300
TRACE = Path("/tmp/ray/ray_current_cluster")
HEAD, OTHER = "10.98.77.1", "10.98.77.2"
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
CALM = ["--disable-usage-stats", "--num-cpus=1", "--object-store-memory=134217728"]


@dataclass(frozen=True)
class Machines:
    head: str
    """Name of its namespace."""
    other: str
    env: dict[str, str]

    def run(self, where: str, *line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", where, *line],
            capture_output=True, text=True, env=self.env, timeout=LIMIT_S, check=False,
        )  # fmt: skip


def ip(*line: str) -> None:
    done = subprocess.run(["ip", *line], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"this machine makes no network namespaces: ip {' '.join(line)}: {done.stderr.strip()}")


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    name = secrets.token_hex(3)
    head, other = f"forge-{name}-a", f"forge-{name}-b"
    env = {
        **os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }  # fmt: skip
    there = Machines(head, other, env)
    folder = tempfile.mkdtemp(prefix="forge-ray-")  # a socket's path is short, and the user's own /tmp/ray is not ours
    try:
        for space in (head, other):
            ip("netns", "add", space)
        ip("link", "add", f"v{name}a", "netns", head, "type", "veth", "peer", "name", f"v{name}b", "netns", other)
        for space, end, address in ((head, f"v{name}a", HEAD), (other, f"v{name}b", OTHER)):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", end)
            for link in ("lo", end):
                ip("-n", space, "link", "set", link, "up")
        began = there.run(
            head,
            *RAY,
            "start",
            "--head",
            f"--node-ip-address={HEAD}",
            "--port=6379",
            "--include-dashboard=false",
            f"--temp-dir={folder}",
            *CALM,
        )
        assert began.returncode == 0, began.stdout + began.stderr
        joined = there.run(other, *RAY, "start", f"--address={HEAD}:6379", f"--node-ip-address={OTHER}", *CALM)
        assert joined.returncode == 0, joined.stdout + joined.stderr
        yield there
    finally:
        for space in (head, other):
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
            for pid in found.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)
        if TRACE.exists() and TRACE.read_text() == f"{HEAD}:6379":
            TRACE.unlink()  # the worker leaves it there all the same, and others would join us by it


DRIVER = f"""
import asyncio, collections, json, sys
from pathlib import Path
from forge.rollouts.balance import Balance
from forge.rollouts.groups import Work, draw
from forge.rollouts.nodes import Nodes, Upstream
from forge.rollouts.sessions import Sessions
from forge.rollouts.settings import RolloutConfig
from forge.run_config import RunConfig
from forge.runners import find
from forge.tasks import Grader, Task
from forge.trainer.cluster import cluster
from tests.engine import ScriptedEngine
from tests.run.fake import FakeHarness

SCRIPT = "print(call()); pathlib.Path('made').touch()"

async def main(data):
    task = Task(id="t", prompt="say hi", grader=Grader(command="test -e made"))
    run = RunConfig(
        adapters=(FakeHarness(SCRIPT),), tasks=(task,), runner=find("local"), data=data, run_id="r", seconds=120.0
    )
    config = RolloutConfig(run=run)
    engine = ScriptedEngine()
    engine.host = "{HEAD}"
    (data.parent / "scratch").mkdir()
    async with engine:
        nodes = Nodes(config, Upstream(engine.url), print)
        await nodes.start()
        sessions = Sessions(config, nodes, data.parent / "scratch")
        group = await draw(sessions, Balance(size=4, stride=4, maximum=4), Work(task, run.adapters[0], "g"))
        await nodes.stop()
    places = collections.Counter(nodes_of(nodes)[each.node] for each in group.drawn)
    print(json.dumps([places, [each.status for each in group.drawn]]))

def nodes_of(nodes):
    return {{node.id: node.address for node in nodes.all}}

with cluster("{HEAD}:6379"):
    asyncio.run(main(Path(sys.argv[1])))
"""


def test_sessions_run_on_both_and_make_one_dataset(machines: Machines, tmp_path: Path) -> None:
    """Each proxy is asked on its own machine's loopback; the driver asks both; each writes its own parts."""
    data = tmp_path / "data"
    done = machines.run(machines.head, sys.executable, "-c", DRIVER, str(data))
    assert done.returncode == 0, done.stdout + done.stderr
    places, statuses = json.loads(done.stdout.splitlines()[-1])
    assert places == {HEAD: 2, OTHER: 2}
    assert statuses == ["completed"] * 4
    dataset = Dataset(data)
    assert {(s.status, s.reward) for s in dataset.sessions()} == {("completed", 1.0)}
    assert [len(dataset.sessions(writer=writer)) for writer in (0, 1)] == [2, 2]
    assert Counter(call.status for call in dataset.calls()) == {"ok": 4}
    assert len(list(dataset.samples())) == 4
