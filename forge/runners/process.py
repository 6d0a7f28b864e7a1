"""One child process: started at once, its output kept up to a limit, its end awaited on the event loop.

``subprocess.Popen`` and not asyncio's own spawn, for two reasons that cost sandboxes elsewhere: the parent-death
signal is tied to the thread that forks, which here is the event loop's; and there is no moment at which a cancelled
caller has a process but no handle of it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from forge.runners.base import LOCALE, OUTPUT_MAX, Job, Places

POLL_S = 0.05
"""Only where the system has no pidfd."""
CHUNK = 1 << 16
DRAIN_S = 5.0
"""How long a killed process may take to go, and output may flow after that: only one that escaped holds it open."""


def environment(job: Job, places: Places, path: Sequence[str]) -> dict[str, str]:
    """The allow-list: nothing is inherited."""
    return {
        "PATH": os.pathsep.join((*job.path, *path)),
        "HOME": places.home,
        "TMPDIR": places.tmp,
        "LANG": LOCALE,
        "TERM": "dumb",
        **job.env,
    }


def start(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: str | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """In a session and process group of its own, stdin closed. Raises ``OSError``."""
    return subprocess.Popen(
        argv,
        env=env,
        cwd=cwd,
        pass_fds=pass_fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def why_not(error: OSError) -> str:
    """Why a job could not be started, for whoever wrote its task."""
    if error.errno == errno.E2BIG:
        return "its command line is too long for this system: put long input into the task's `files`, not its prompt"
    return str(error)


async def supervise(process: subprocess.Popen[bytes], job: Job, end_all: Callable[[], None]) -> bool:
    """Wait for the end or the time limit, then ``end_all`` and reap; True if it was the time limit.

    On cancellation too. The reaping blocks the loop for the milliseconds that a killed process takes to go: awaiting
    it could be cancelled a second time, and then nobody would have seen it go.
    """
    timed_out = False
    async with asyncio.TaskGroup() as group:
        assert process.stdout is not None
        assert process.stderr is not None
        pumps = [
            group.create_task(_keep(process.stdout, job.stdout)),
            group.create_task(_keep(process.stderr, job.stderr)),
        ]
        try:
            async with asyncio.timeout(job.seconds):
                await _ended(process)
        except TimeoutError:
            timed_out = True
        finally:
            end_all()
            with suppress(subprocess.TimeoutExpired):
                process.wait(DRAIN_S)
        await asyncio.wait(pumps, timeout=DRAIN_S)
        for pump in pumps:
            pump.cancel()
    return timed_out


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Cancelling it leaves the process running."""
    if not hasattr(os, "pidfd_open"):
        while process.poll() is None:
            await asyncio.sleep(POLL_S)
        return
    if process.poll() is not None:
        return
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    pidfd = os.pidfd_open(process.pid)
    try:
        loop.add_reader(pidfd, done.set)
        await done.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
    process.wait()


async def _keep(pipe: IO[bytes], path: Path) -> None:
    """Copy a pipe to a file until its end; what is beyond ``OUTPUT_MAX`` is read and dropped."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        with path.open("wb", buffering=0) as file:  # for whoever follows it
            left = OUTPUT_MAX
            while chunk := await reader.read(CHUNK):
                file.write(chunk[:left])
                left -= len(chunk[:left])
    finally:
        transport.close()
