"""A Ray cluster for the length of one ``with``: our own on this machine, or one that runs already.

Ray writes a token into the user's home and turns its own authentication on or off by what it finds there. We name
the mode and give a token of our own instead, so that runs with different homes or settings do not collide, and
nothing on this machine can speak to our cluster without it. Ray reads both once, when it is first used in a process,
which is why they stay in the environment for the next ``with``.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forge.storage.errors import Unavailable

OBJECT_STORE_BYTES: Final = 256 << 20
"""Enough for the rows of a batch; beyond it Ray spills to disk. Its default, 30 % of memory, starves a laptop."""

KNOCK_S: Final = 5.0
CPUS_MIN: Final = 2
"""One for the learner and one for sessions, also where both share a core."""
VERSIONS: Final = "Version mismatch"
"""How Ray begins to say that the cluster was started with another Ray or Python."""


def cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Starts or joins a cluster, and always leaves it. Within another one it is that one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own 15 lets any other program on the machine starve the learners, which are the job itself.
    os.environ.setdefault("RAY_worker_niceness", "0")
    # Read by the learners' OpenMP: threads that spin between kernels wait out other programs' time slices.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if address is None and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    if address is not None:
        _knock(address)
    try:
        import ray
    except ImportError as error:
        raise Unavailable(f"training needs ray: {error}", "pip install 'rollout-forge[train]'") from error
    if ray.is_initialized():
        yield
        return
    try:
        _start(address)
        yield
    finally:
        ray.shutdown()


def _start(address: str | None) -> None:
    import ray

    try:
        if address is not None:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            return
        ray.init(
            address="local",  # else Ray joins whatever cluster it finds on this machine
            num_cpus=max(CPUS_MIN, cpus()),
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # a node that does not start is no more than that to Ray
        if address is not None:
            raise _cannot_join(address, error) from error
        raise Unavailable(
            f"cannot start Ray on this machine: {error}",
            "look at /tmp/ray/session_latest/logs; end old clusters with: ray stop",
        ) from error


def _cannot_join(address: str, error: Exception) -> Unavailable:
    said = " ".join(str(error).split())
    if said.startswith(VERSIONS):
        hint = "start forge with the Ray and the Python of the cluster"
    else:
        hint = "check the address, and that RAY_AUTH_MODE and RAY_AUTH_TOKEN are those of the cluster"
    return Unavailable(f"cannot join the Ray cluster at {address}: {said}", hint)


def _knock(address: str) -> None:
    """Ray itself tries an address where nobody answers for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=KNOCK_S).close()
        except OSError as error:
            raise _cannot_join(address, error) from error
