"""What the data directory holds, and whether there is room for new sessions: looked at once for all workers."""

from __future__ import annotations

import asyncio
import time

from forge.proxy.config import ProxyConfig
from forge.proxy.vitals import DISK_SHARE, Disk, measure, refusal
from forge.proxy.workers.leading import LeadingPool


class DiskWatch:
    def __init__(self, config: ProxyConfig, pool: LeadingPool) -> None:
        self._config = config
        self._pool = pool
        self.disk = Disk()

    @property
    def refuses(self) -> str:
        """Why no new session is taken; empty if one is."""
        return self._pool.refuses

    async def run(self) -> None:
        """As long as the proxy; the workers know a moment later."""
        while True:
            began = time.monotonic()
            self.disk = await asyncio.to_thread(measure, self._config.data)
            self._pool.refuses = refusal(self.disk.total, self._config.disk_budget)
            took = time.monotonic() - began
            await asyncio.sleep(max(self._config.limits.disk_s, took * DISK_SHARE))
