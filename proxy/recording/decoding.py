"""The decoder as this proxy's child: started with it, started again if it dies, stopped once it has caught up."""

from __future__ import annotations

import asyncio
import logging
import os
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from forge.proxy.recording.recorder import Recorder
from forge.storage import checkpoint

log = logging.getLogger(__name__)

AGAIN_S: Final = 1.0
"""Before a decoder that died is started again."""
LOOK_S: Final = 0.05
STOP_S: Final = 10.0


class DecoderProcess:
    def __init__(self, command: Sequence[str], data: Path, recorder: Recorder, env: Mapping[str, str]) -> None:
        """``env``: beside this process's own."""
        self._command = command
        self._data = data
        self._recorder = recorder
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

    async def caught_up(self, wait_s: float) -> bool:
        """True once everything up to the last cut is in the dataset."""
        writer, last = self._recorder.journal.writer, self._recorder.last_cut
        try:
            async with asyncio.timeout(wait_s):
                while last is not None and tuple(self._mark(writer)) < tuple(last):
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return False
        return True

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
