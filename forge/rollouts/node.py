"""The proxy of one node, as a Ray actor: every session there calls it on loopback, the driver its control plane.

Its ports are free ones. The non-obvious fact: it serves as long as the generator that ``serve`` gives is not exhausted,
so that what ends it ends up with whoever holds that, and nothing has to poll.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from forge.adapters.harnesses.packages import cache_folder
from forge.proxy.app import serve
from forge.proxy.config import ProxyConfig
from forge.run_config import RunConfig
from forge.scratch import scratch
from forge.stack import Control
from forge.storage.errors import Unavailable


class Place(NamedTuple):
    """A node as it is when its proxy is to start."""

    forge: str
    python: str
    pid: int


def here() -> Place:
    return Place(importlib.metadata.version("rollout-forge"), platform.python_version(), os.getpid())


class NodeProxy:
    """An asyncio actor."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()

    async def place(self) -> Place:
        return here()

    async def prepare(self, config: RunConfig) -> None:
        """Raises what would hit every session on this node: no confinement, no harness."""
        config.runner.check()
        for adapter in config.adapters:
            await asyncio.to_thread(adapter.install, cache_folder(), _quiet)

    async def serve(self, config: ProxyConfig, key: str | None) -> AsyncIterator[Control]:
        """Gives its control plane once it serves; ends when ``stop`` was called and all is decoded. ``key``: of the
        policy servers."""
        with scratch("node") as folder:
            async with serve(_with_key(config, key, folder)) as running:
                yield Control(running.control_url, running.control_token)
                ends = [asyncio.ensure_future(event.wait()) for event in (self._stop, running.failed)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for end in ends:
                    end.cancel()
                if running.failed.is_set():
                    raise Unavailable("the node's proxy stopped because a part of it failed", "look at its Ray log")

    async def stop(self) -> None:
        self._stop.set()


def _with_key(config: ProxyConfig, key: str | None, folder: Path) -> ProxyConfig:
    if key is None:
        return config
    file = folder / "policy.key"
    file.touch(mode=0o600)
    file.write_text(key)
    return replace(config, upstream_key_file=file)


def _quiet(text: str) -> None:
    """Nobody looks on at a node."""
