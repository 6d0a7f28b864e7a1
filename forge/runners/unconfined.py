"""Runs a job as an ordinary process of this user: for machines without bubblewrap, and for people who say so.

It keeps the environment's allow-list and the time limit, and it does its best to end the whole tree: the process group,
then everything that still carries the job's tag in its environment (which a daemon inherits). A program that wipes its
environment and leaves its group escapes, and so does all of it when this process is killed; that is what the local
runner is for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from forge.runners.base import Ending, Folders, Job, Places
from forge.runners.process import environment, start, supervise, why_not

TAG: Final = "FORGE_JOB"
SWEEPS_MAX: Final = 50
"""Scans for tagged processes: each finds those that the ones killed before it had just started."""


class UnconfinedRunner:
    name = "unconfined"

    def check(self) -> None:
        """Works wherever Forge does."""

    def places(self, folders: Folders, installs: Path) -> Places:
        return Places(
            workspace=str(folders.workspace), home=str(folders.home), tmp=str(folders.tmp), installs=str(installs)
        )

    async def run(self, job: Job) -> Ending:
        began = time.monotonic()
        tag = f"{TAG}={uuid.uuid4().hex}"
        places = self.places(job.folders, Path())
        path = os.environ.get("PATH", os.defpath).split(os.pathsep)
        env = {**environment(job, places, path), TAG: tag.partition("=")[2]}
        try:
            process = start(job.argv, env, cwd=job.cwd)
        except OSError as error:
            return Ending(not_started=why_not(error))
        timed_out = await supervise(process, job, lambda: _end_tree(process, tag.encode()))
        seconds = time.monotonic() - began
        return Ending(exit_code=None if timed_out else process.returncode, timed_out=timed_out, seconds=seconds)


def _end_tree(process: subprocess.Popen[bytes], tag: bytes) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for _ in range(SWEEPS_MAX):
        if not (tagged := _tagged(tag)):
            return
        for pid in tagged:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _tagged(tag: bytes) -> list[int]:
    """Processes with ``tag`` in the environment they were started with; a dead one has none."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if tag in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
