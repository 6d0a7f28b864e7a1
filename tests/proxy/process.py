"""The proxy as a process of its own, for tests that kill it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 30.0
STOP_S = 240.0
"""A bound, no promise: what killed proxies left is decoded too."""


@dataclass
class ProxyProcess:
    process: asyncio.subprocess.Process
    said: dict[str, Any]
    log: Path

    @property
    def base_url(self) -> str:
        return str(self.said["base_url"])

    @property
    def control_url(self) -> str:
        return str(self.said["control_url"])

    @property
    def token(self) -> str:
        return Path(self.said["control_token_file"]).read_text()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), STOP_S)


def argv(data: Path, upstream: str | None, ready: Path, *more: str) -> list[str]:
    command = [sys.executable, "-m", "forge", "proxy", "--data", str(data), "--run", "run", "--port", "0"]
    command += ["--control-port", "0", "--ready-file", str(ready), *more]
    return [*command, "--upstream", upstream] if upstream is not None else command


@asynccontextmanager
async def proxy_process(
    data: Path,
    upstream: str | None,
    *more: str,
    preexec: Callable[[], None] | None = None,
    beside: Path | None = None,
    start_s: float = START_S,
) -> AsyncIterator[ProxyProcess]:
    """Serving when this returns; killed at the end if the test did not stop it. ``beside``: where it says that it is
    ready and logs, if not beside its data."""
    folder = beside or data.parent
    ready, log = folder / "ready.json", folder / "proxy.log"
    ready.unlink(missing_ok=True)
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *argv(data, upstream, ready, *more), stdout=out, stderr=out, preexec_fn=preexec
        )
    try:
        async with asyncio.timeout(start_s):
            while not ready.exists():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.01)
        yield ProxyProcess(process, json.loads(ready.read_text()), log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def run_to_end(command: Sequence[str], limit_s: float = START_S) -> tuple[int, str]:
    """Exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), limit_s)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode()
