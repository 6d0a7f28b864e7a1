"""One Ray cluster for all tests of a process: starting it takes seconds on an idle machine, a minute on a busy one."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STORE_BYTES = 128 << 20
MARK = "FORGE_TEST_CLUSTER"


@dataclass
class RayCluster:
    """A head with two CPUs, and what a test adds to it and takes away."""

    cluster: Any
    mark: str

    def add(self) -> Any:
        node = self.cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        self.cluster.wait_for_nodes()
        return node

    def remove(self, node: Any, *, graceful: bool = True) -> None:
        """Its processes are gone at once; until Ray knows that, whatever asks for the cluster's CPUs counts them."""
        self.cluster.remove_node(node, allow_graceful=graceful)
        self.cluster.wait_for_nodes()

    def pids(self, title: str) -> list[int]:
        """Of this cluster's workers that run a task or an actor of this name."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ, line = (folder / "environ").read_bytes(), (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{MARK}={self.mark}".encode() in environ.split(b"\0") and line.startswith(f"ray::{title}".encode()):
                found.append(int(folder.name))
        return sorted(found)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed (extra: train)")
    mark = secrets.token_hex(8)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(Path(__file__).parents[2]), MARK: mark})
    if "ray" not in sys.modules:  # it reads them when it is first imported
        os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 2, "object_store_memory": STORE_BYTES, "include_dashboard": False},
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        yield RayCluster(cluster, mark)
    finally:
        ray.shutdown()
        cluster.shutdown()
