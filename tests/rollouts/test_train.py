"""``forge train --tasks``: the whole loop in a cluster that runs already, and everything that is refused."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.policy import weights
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit, ForgeError
from tests.engine import LOAD, Fault, Turn
from tests.lora import LoraEngine
from tests.rollouts.conftest import RayCluster

TIMEOUT_S = 420
NOBODY = "http://127.0.0.1:1"
AGENT = """
import json, os, pathlib, sys, urllib.request
body = {"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}
head = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
    text = json.load(answer)["choices"][0]["message"]["content"]
pathlib.Path("answer.txt").write_text(text or "")
"""
COIN = "cksum < answer.txt | awk '{print $1 % 2}'"
"""A reward that any policy gets about half the time."""


def tasks(path: Path, *lines: str) -> Path:
    rows = [
        json.dumps({"id": f"t{n}", "prompt": f"word {n}", "files": {"agent.py": AGENT}, "grader": {"command": COIN}})
        for n in range(2)
    ]
    path.write_text("\n".join([*rows, *lines]) + "\n")
    return path


@pytest.mark.ray
@pytest.mark.process
@pytest.mark.model
def test_the_whole_loop_learns_from_its_own_sessions(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """Two batches, one of them begun while the first is learned from; the second learner's weights are served."""
    pytest.importorskip("torch")
    from forge.learn.small import make

    model, data = make(tmp_path / "model", 1), tmp_path / "data"
    line = ["--harness", "command", "--command", "python3 agent.py {prompt}"]
    line += ["--tasks", str(tasks(tmp_path / "tasks.jsonl")), "--model", str(model), "--data", str(data)]
    line += ["--batches", "2", "--groups", "1", "--max-staleness", "1", "--run", "online", "--lr", "1e-3"]
    line += ["--sampling", '{"max_tokens": 8}', "--ray", ray_cluster.cluster.address]
    done = subprocess.run(
        [sys.executable, "-m", "forge", "train", *line],
        capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, "HOME": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    published = weights.current(data)
    assert published is not None
    assert published.version == 2
    batches = [json.loads(line) for line in next(data.glob("train/*/rollouts.jsonl")).read_text().splitlines()]
    assert [(line["batch"], line["version"], line["groups"]) for line in batches] == [(0, 0, 1), (1, 1, 1)]
    assert all(0 < line["pass_rate"] < 1 for line in batches)
    dataset = Dataset(data)
    sessions = {s.session_id: s for s in dataset.sessions()}
    chosen = {s.session_id for s in dataset.samples() if s.trainable}
    assert len(chosen) == 8
    assert {sessions[each].selection for each in chosen} == {None}
    left = [s for s in sessions.values() if s.session_id not in chosen and s.reward is not None]
    assert {s.selection for s in left} <= {"not_selected"}
    assert {call.policy_version_start for call in dataset.calls()} <= {0, 1}
    steps = [json.loads(line) for line in Path(done.stdout.split()[-1]).read_text().splitlines()]
    assert [step["staleness_max"] <= 1 for step in steps] == [True, True]


@pytest.mark.ray
@pytest.mark.process
@pytest.mark.model
async def test_adapters_are_loaded_live_and_ctrl_c_closes_what_runs(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """The server takes adapters: the base is loaded once, as a whole, and from then on calls name the adapter of the
    newest version. The sessions of the third batch get no answer and are ended; nothing is lost."""
    pytest.importorskip("torch")
    from forge.learn.small import make

    model, data, said_so_far = make(tmp_path / "model", 1), tmp_path / "data", itertools.count()
    line = ["--harness", "command", "--command", "python3 agent.py {prompt}", "--groups", "1", "--run", "online"]
    line += ["--tasks", str(tasks(tmp_path / "tasks.jsonl")), "--model", str(model), "--data", str(data)]
    line += ["--batches", "3", "--lora-rank", "4", "--ray", ray_cluster.cluster.address]

    def turn(request: dict[str, Any]) -> Turn:
        if ":forge-2-" in request.get("model", ""):
            return Turn(fault=Fault(mute=True))
        return Turn(f"number {next(said_so_far)}")  # now and then it wins

    async with LoraEngine(root=str(model)) as engine, asyncio.timeout(TIMEOUT_S):
        engine.default = turn
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "forge", "train", *line, "--policy", engine.url,
            env={**os.environ, "HOME": str(tmp_path)}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            while sum(each.turn.fault.mute for each in engine.served) < 4 and process.returncode is None:
                await asyncio.sleep(0.1)
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            said = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    assert process.returncode == Exit.INTERRUPTED, said
    assert "Traceback" not in said
    was_given_adapters(engine, model, data)
    calls = list(Dataset(data).calls("online"))
    assert {
        (call.policy_version_start, call.version_source, call.model_served) for call in calls if call.status == "ok"
    } == {(0, "replica_state", "policy"), (1, "engine_answer", "policy")}
    cut = {call.session_id for call in calls if call.policy_version_start == 2}
    ended = [(s.status, s.reward_status) for s in Dataset(data).sessions() if s.session_id in cut]
    assert ended == [("interrupted", "null")] * 4
    assert ray_cluster.pids("NodeProxy") == []


def was_given_adapters(engine: LoraEngine, model: Path, data: Path) -> None:
    folders = [data / "policy" / version / "adapter" for version in "12"]
    assert list(engine.adapters.values()) == [str(folder) for folder in folders]
    assert all((folder / "adapter_model.safetensors").exists() for folder in folders)
    loads = [(path, told) for path, told in engine.admin if path in ("/collective_rpc", LOAD)]
    assert [path for path, _ in loads] == ["/collective_rpc", LOAD, LOAD]
    assert loads[0][1]["kwargs"]["weights_path"] == str(model)
    served = [each.json["model"] for each in engine.served if asked(each.json)]
    order = ["policy", *engine.adapters]
    assert served == sorted(served, key=order.index)
    assert set(served) == set(order)


def asked(request: dict[str, Any]) -> bool:
    """It is one of the harness's, not of the probe."""
    return any(str(message["content"]).startswith("word") for message in request.get("messages", ()))


def refused(*line: str) -> ForgeError:
    """What ``forge train`` raises before anything is started."""
    found = CliRunner().invoke(build(), ["train", *line]).exception
    assert isinstance(found, ForgeError), found
    assert found.hint
    return found


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 3"),
        (['{"id": "t0", "prompt": "again"}'], "line 3: the id 't0' stands on an earlier line"),
        (['{"id": "x", "prompt": "p"}'], "'x' has no grader"),
        (['{"id": "x", "prompt": "p", "grader": {"command": "true", "timeout": 0}}'], "line 3"),
    ],
)
def test_a_broken_tasks_file_is_named_with_its_line(tmp_path: Path, lines: list[str], said: str) -> None:
    error = refused("--harness", "pi", "--tasks", str(tasks(tmp_path / "tasks.jsonl", *lines)))
    assert error.exit_code == Exit.BAD_INPUT
    assert said in error.message
    assert "tasks.jsonl" in error.message or "grader" in error.message


@pytest.mark.parametrize(
    ("options", "said", "code"),
    [
        (["--tasks", "TASKS"], "run in a harness", Exit.BAD_INPUT),
        (["--harness", "pi"], "there are none", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "/no/such/file"], "/no/such/file", Exit.BAD_INPUT),
        (["--harness", "nope", "--tasks", "TASKS"], "nope", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--model", "/"], "no *.safetensors file", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--model", "/no/such"], "/no/such", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--control", "http://127.0.0.1:1"], "--control", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--draw-max", "3"], "--draw-max", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--max-staleness", "-1"], "--max-staleness", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--run", "a", "--run", "b"], "one run", Exit.BAD_INPUT),
        (["--harness", "pi", "--tasks", "TASKS", "--policy", NOBODY], "cannot be reached", Exit.UNAVAILABLE),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, options: list[str], said: str, code: Exit
) -> None:
    file = str(tasks(tmp_path / "tasks.jsonl"))
    line = [file if each == "TASKS" else each for each in options]
    error = refused(*line, "--data", str(tmp_path / "data"), "--runner", "unconfined")
    assert said in f"{error.message} {error.hint}"
    assert error.exit_code == code
    assert not (tmp_path / "data").exists()


IN_THE_CLUSTER = """
import sys
from forge.rollouts.nodes import enough
from forge.storage.errors import ForgeError
from forge.trainer.cluster import cluster

try:
    with cluster(sys.argv[1]):
        enough(int(sys.argv[2]))
except ForgeError as error:
    print(error.message)
    print(error.hint)
    sys.exit(error.exit_code)
"""


def joined(address: str, learners: int, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IN_THE_CLUSTER, address, str(learners)],
        capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **env}, check=False,
    )  # fmt: skip


@pytest.mark.ray
@pytest.mark.process
def test_a_cluster_without_room_for_a_session_is_named(ray_cluster: RayCluster) -> None:
    done = joined(ray_cluster.cluster.address, 2)
    assert done.returncode == Exit.UNAVAILABLE, done.stdout + done.stderr
    assert "the cluster has 2 CPUs; 2 for the trainer" in done.stdout


@pytest.mark.ray
@pytest.mark.process
def test_a_cluster_with_another_token_is_named(ray_cluster: RayCluster) -> None:
    done = joined(ray_cluster.cluster.address, 1, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="not-the-clusters-token-at-all")
    assert done.returncode == Exit.UNAVAILABLE, done.stdout + done.stderr
    assert "RAY_AUTH_TOKEN are those of the cluster" in done.stdout


@pytest.mark.ray
@pytest.mark.process
def test_another_ray_or_python_than_the_clusters_is_named(ray_cluster: RayCluster) -> None:
    """The cluster's own record says that it was started by others."""
    from ray._private.worker import global_worker

    kv, key, place = global_worker.gcs_client, b"CLUSTER_METADATA", b"cluster"
    real = kv.internal_kv_get(key, namespace=place)
    other = {**json.loads(real), "ray_version": "2.0.0", "python_version": "3.8.1"}
    kv.internal_kv_put(key, json.dumps(other).encode(), True, namespace=place)
    try:
        done = joined(ray_cluster.cluster.address, 1)
    finally:
        kv.internal_kv_put(key, real, True, namespace=place)
    assert done.returncode == Exit.UNAVAILABLE, done.stdout + done.stderr
    assert "2.0.0" in done.stdout
    assert "the Ray and the Python of the cluster" in done.stdout


ON_OTHER_NODES = """
import asyncio, sys
from pathlib import Path
from forge.rollouts.nodes import Nodes, Upstream
from forge.rollouts.settings import RolloutConfig
from forge.run_config import RunConfig
from forge.runners import find
from forge.storage.errors import ForgeError
from forge.trainer.cluster import cluster

run = RunConfig(adapters=(), tasks=(), runner=find("unconfined"), data=Path(sys.argv[2]), run_id="r")
try:
    with cluster(sys.argv[1]):
        asyncio.run(Nodes(RolloutConfig(run=run), Upstream("http://127.0.0.1:1"), print).start())
except ForgeError as error:
    print(error.message)
    print(error.hint)
    sys.exit(error.exit_code)
"""


@pytest.mark.ray
@pytest.mark.process
def test_a_node_with_another_forge_is_named(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """The driver's is the odd one: an installed distribution is what the first metadata on its path says. Of ``-c``
    that path begins with the working directory, which must not be a checkout."""
    told = tmp_path / "other" / "rollout_forge-99.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.4\nName: rollout-forge\nVersion: 99\n")
    env = {**os.environ, "PYTHONPATH": f"{told.parent}{os.pathsep}{os.environ['PYTHONPATH']}"}
    done = subprocess.run(
        [sys.executable, "-c", ON_OTHER_NODES, ray_cluster.cluster.address, str(tmp_path / "data")],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=env, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.UNAVAILABLE, done.stdout + done.stderr
    assert f"has forge {importlib.metadata.version('rollout-forge')} on Python" in done.stdout
    assert "the driver 99 on" in done.stdout
    assert "install the same on every node" in done.stdout
