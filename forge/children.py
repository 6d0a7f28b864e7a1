"""Servers as child processes of a run: started, awaited, stopped; the errors of our own passed on as ours.

A child runs in a session of its own, so that Ctrl-C reaches only the parent, which then stops its children in order;
and it gets SIGTERM from the kernel should the parent be killed (Linux).
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.storage.errors import BadInput, Exit, ForgeError, Unavailable, Untrainable

POLL_S: Final = 0.05
WATCH_S: Final = 0.5
KILL_S: Final = 5.0
TAIL_BYTES: Final = 4000
FORGE: Final = (sys.executable, "-m", "forge")
FOLLOW: Final = """\
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Runs between fork and the program: PR_SET_PDEATHSIG survives exec, and needs no code in the forked child."""


class Child:
    """``forge ARGS``, or another program, as a child process; what it prints goes to ``log``."""

    def __init__(self, name: str, args: Sequence[str], log: Path, program: Sequence[str] = FORGE) -> None:
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", FOLLOW, str(os.getpid()), *program, *args]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    async def ready(self, file: Path, limit_s: float) -> dict[str, Any]:
        """What it says in its ready file; raises the child's own error if it ends first."""
        end = time.monotonic() + limit_s
        while not file.exists():
            if self._process.poll() is not None:
                raise self._error()
            if time.monotonic() > end:
                raise Unavailable(f"the {self.name} is not ready after {limit_s:g} s", f"its log is {self._log}")
            await asyncio.sleep(POLL_S)
        said: dict[str, Any] = msgspec.json.decode(file.read_bytes())
        return said

    async def watch(self) -> None:
        """Raises when it ends by itself: what needs it cannot go on. To be cancelled before ``stop``."""
        while self._process.poll() is None:
            await asyncio.sleep(WATCH_S)
        raise self._error()

    async def stop(self, limit_s: float) -> None:
        """SIGTERM, and SIGKILL if it has not ended after ``limit_s``. Safe to call twice."""
        for sign, wait_s in ((signal.SIGTERM, limit_s), (signal.SIGKILL, KILL_S)):
            if self._process.poll() is not None:
                return
            with suppress(ProcessLookupError):
                self._process.send_signal(sign)
            end = time.monotonic() + wait_s
            while self._process.poll() is None and time.monotonic() < end:
                await asyncio.sleep(POLL_S)

    def _error(self) -> ForgeError:
        """The error with which the child ended, found in its log as ``forge`` prints it."""
        lines = self._log.read_bytes()[-TAIL_BYTES:].decode(errors="replace").splitlines()
        message = next((line[7:] for line in reversed(lines) if line.startswith("error: ")), None)
        hint = next((line[8:] for line in reversed(lines) if line.startswith("  next: ")), f"its log is {self._log}")
        code = self._process.returncode
        kinds: dict[int, type[ForgeError]] = {Exit.BAD_INPUT: BadInput, Exit.UNTRAINABLE: Untrainable}
        kind = kinds.get(code, Unavailable)
        return kind(message or f"the {self.name} ended with exit code {code}", hint)
