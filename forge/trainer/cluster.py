"""A Ray cluster for the length of one ``with``: our own on this machine, or one that runs already.

Ray writes a token into the user's home and turns its own authentication on or off by what it finds there. We name
the mode and give a token of our own instead, so that two runs with different homes or settings do not collide, and
nothing on this machine can speak to our cluster without it. The environment is put back afterwards.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from forge.storage.errors import Unavailable

OBJECT_STORE_BYTES: Final = 256 << 20
"""Enough for the rows of a batch; beyond it Ray spills to disk. Its default, 30 % of memory, starves a laptop."""


def cpus() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@contextmanager
def cluster(address: str | None) -> Iterator[None]:
    """Starts or joins a cluster, and always leaves it."""
    with _environment(_settings(address)):  # Ray reads it when it is imported
        try:
            import ray
        except ImportError as error:
            raise Unavailable(f"training needs ray: {error}", "pip install 'rollout-forge[train]'") from error
        try:
            _start(address)
            yield
        finally:
            ray.shutdown()


def _start(address: str | None) -> None:
    import ray

    try:
        if address is None:
            ray.init(
                num_cpus=cpus(),
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        else:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        where = f"join the Ray cluster at {address}" if address else "start Ray on this machine"
        raise Unavailable(
            f"cannot {where}: {error}",
            "check the address, and that RAY_AUTH_MODE and RAY_AUTH_TOKEN are those of the cluster"
            if address
            else "look at /tmp/ray/session_latest/logs; end old clusters with: ray stop",
        ) from error


def _settings(address: str | None) -> dict[str, str]:
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}
    if address is None and "RAY_AUTH_MODE" not in os.environ:
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return settings


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
