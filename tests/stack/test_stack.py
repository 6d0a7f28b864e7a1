"""docker-compose.yml, built and run: the commands of docs/deploy.md, as a user types them.

Started by ``make test-stack``, which sees to a Docker engine and to a base image (``tests/stack_env.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1800)]

ROOT: Final = Path(__file__).resolve().parents[2]
PROJECT: Final = "forge-test"
OURS: Final = ("proxy", "policy", "trainer", "worker")
CONTROL: Final = ("--control", "http://proxy:8101")


KNOCKS: Final = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def opens(place):
    try:
        socket.create_connection(place, 3).close()
        return True
    except OSError:
        return False

places = [tuple(place) for place in json.loads(sys.argv[1])]
with ThreadPoolExecutor(len(places)) as pool:  # a name that is not known there takes ten seconds
    print(*(host for (host, _), there in zip(places, pool.map(opens, places)) if there))
"""
"""Says who opens."""


class Stack:
    def __init__(self, env: dict[str, str]) -> None:
        self.env = env
        plugin = subprocess.run(["docker", "compose", "version"], env=env, capture_output=True, check=False)
        self._compose = ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]

    def __call__(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._compose, *words], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=1700, check=False
        )
        assert not ok or done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def inside(self, service: str, *command: str, ok: bool = True) -> str:
        return self("exec", "-T", service, *command, ok=ok).stdout

    def harness(self, *command: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        return self("run", "--rm", "-T", "harness", *command, ok=ok)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    env = {
        **os.environ,
        "COMPOSE_PROJECT_NAME": PROJECT,
        "BASE_IMAGE": os.environ["FORGE_TEST_BASE"],
        "POSTGRES_IMAGE": os.environ["FORGE_TEST_POSTGRES"],
        "HARNESSES": "codex pi",
        "FORGE_PORT": "0",
        "FORGE_CONTROL_PORT": "0",
        "FORGE_PROXY_OPTIONS": "--run stack",
    }
    up = Stack(env)
    for service in ("proxy", "harness", "policy"):
        up("build", service)
    try:
        up("--profile", "scale", "up", "--detach", "--no-build")
        up("run", "--rm", "-T", "harness", "true")  # waits for a healthy proxy
        yield up
    finally:
        logs = up("logs", "--no-color", ok=False).stdout
        print(logs[-20_000:])
        up("--profile", "scale", "down", "--volumes", "--timeout", "20", ok=False)


@pytest.mark.parametrize("harness", ["codex", "pi"])
def test_changing_the_harness_changes_a_word(stack: Stack, harness: str) -> None:
    limits = ["--sampling", '{"max_tokens": 48}', "--timeout", "900", "--run", f"stack-{harness}"]
    done = stack.harness("forge", "run", *CONTROL, "--harness", harness, "--task", "Say hello.", *limits, ok=False)
    # A model this small may end its turn in a way that Codex calls failed; what counts is that it was served.
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said = json.loads(stack.inside("proxy", "forge", "stats", f"stack-{harness}", "--data", "/data", "--json"))
    assert said["sessions"] == 1
    assert said["calls"] >= 1


def test_nothing_of_ours_runs_as_root(stack: Stack) -> None:
    assert {stack.inside(service, "id", "-u").strip() for service in OURS} == {"10001"}


def test_a_harness_reaches_the_proxy_and_nothing_else(stack: Stack) -> None:
    places = [("proxy", 8100), ("policy", 8200), ("postgres", 5432), ("trainer", 6379), ("1.1.1.1", 443)]
    assert stack.harness("python", "-c", KNOCKS, json.dumps(places)).stdout.split() == ["proxy"]


def test_a_session_in_the_container_is_confined(stack: Stack) -> None:
    """It sees neither the control plane's token nor other processes' memory, and writes only where it may."""
    look = "cat /run/control/control.token; ls /data; cat /proc/1/environ; echo x > /opt/x; echo $((6 * 7))"
    command = ["--harness", "command", "--command", f"sh -c '{look}'", "--task", "t", "--run", "confined"]
    stack.harness("forge", "run", *CONTROL, *command, ok=False)
    keep = "cat /data/harness/confined/*/stdout"
    assert stack.harness("sh", "-c", keep).stdout.split() == ["42"]


def test_the_catalog_is_in_postgres(stack: Stack) -> None:
    ask = ["psql", "-U", "forge", "-d", "forge", "-Atc", "select count(*) from sessions"]
    assert int(stack.inside("postgres", *ask)) >= 2


def test_ray_has_both_nodes(stack: Stack) -> None:
    ask = "import ray; ray.init('trainer:6379', log_to_driver=False); print(len(ray.nodes()))"
    assert stack.inside("trainer", "python", "-c", ask).split()[-1] == "2"


def test_no_secret_stands_in_an_environment_or_a_log(stack: Stack) -> None:
    files = "cat /run/control/control.token /run/keys/policy.key /run/keys/postgres.password /run/keys/ray.token"
    secrets = stack.inside("proxy", "sh", "-c", f"for f in {files[4:]}; do cat $f; echo; done").split()
    assert len(secrets) == 4
    ids = stack("ps", "-q").stdout.split()
    told = subprocess.run(["docker", "inspect", *ids], env=stack.env, capture_output=True, text=True, check=True).stdout
    told += stack("logs", "--no-color").stdout
    assert not [secret for secret in secrets if secret in told]


def test_a_proxy_that_is_killed_comes_back_with_its_data(stack: Stack) -> None:
    stack("kill", "proxy")
    stack("up", "--detach", "--no-build", "proxy")
    stack("run", "--rm", "-T", "harness", "true")
    said = json.loads(stack.inside("proxy", "forge", "stats", "stack-pi", "--data", "/data", "--json"))
    assert said["sessions"] == 1
