"""The decoder as this proxy's child: started with it, started again if it dies, stopped once it has caught up."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from forge.proxy.config import ProxyConfig
from forge.storage import checkpoint
from forge.storage.journal import Position
from forge.storage.names import CATALOG

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Before a decoder that died is started again."""
LOOK_S: Final = 0.05
STOP_S: Final = 10.0


def command(data: Path) -> list[str]:
    """What a proxy starts as its decoder; it ends when the calling process does.

    That process is named, not looked up by the child: it may be dead before the child can ask for its parent.
    """
    return [sys.executable, "-m", "forge", "decode", "--data", str(data), "--follow-parent", str(os.getpid())]


def decoder_process(config: ProxyConfig) -> DecoderProcess | None:
    """The one that the configuration wants. Raises ``BadInput`` for a catalog that cannot be used."""
    if not config.decoder:
        return None
    keep = ["--journal-keep", config.journal_keep] if config.journal_keep is not None else []
    form = ["--log-format", config.log_format.value]
    env = {}
    if config.catalog is not None:
        from forge.storage.catalog import engine_of

        engine_of(config.catalog).dispose()  # refused here, not by a decoder that would be started again and again
        # Not an argument: a URL may hold a password, and everyone on this machine sees arguments.
        env[CATALOG] = config.catalog
    return DecoderProcess([*command(config.data), *keep, *form], config.data, env)


class DecoderProcess:
    def __init__(self, command: Sequence[str], data: Path, env: Mapping[str, str]) -> None:
        """``env``: beside this process's own."""
        self._command = command
        self._data = data
        self._env = env
        self._process: Process | None = None

    async def run(self) -> None:
        """Keeps one running until cancelled. Recording never waits for it."""
        try:
            while True:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.DEVNULL, env={**os.environ, **self._env}
                )
                code = await self._process.wait()
                log.error("the decoder ended with exit code %s; calls are recorded, it is started again", code)
                await asyncio.sleep(AGAIN_S)
        finally:
            await self._stop()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def catch_up(self, cuts: Mapping[int, Position], wait_s: float) -> None:
        """Returns once everything up to these cuts is in the dataset, each of the journal of that writer; says so where
        that takes too long."""
        try:
            async with asyncio.timeout(wait_s):
                for writer, last in cuts.items():
                    while tuple(self._mark(writer)) < tuple(last):
                        await asyncio.sleep(LOOK_S)
        except TimeoutError:
            log.warning("the decoder has not caught up; it goes on at the next start, or run: forge decode --once")

    def _mark(self, writer: int) -> tuple[int, int]:
        return checkpoint.load(self._data).mark(writer).position

    async def _stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
