"""What a runner is: it carries out one ``Job`` in its own three folders and ends everything the job started.

A runner knows nothing of sessions, harnesses, graders or HTTP; a harness and a grader are both just jobs. The
non-obvious fact: a program sees its folders where the runner says (``Places``), which need not be where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

OUTPUT_MAX: Final = 64 << 20
"""Bytes kept of a job's stdout and stderr, each; the rest is read and dropped, so that the job is not blocked."""
LOCALE: Final = "C.UTF-8"


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a job's own folders lie on this machine. They exist, and only they are written to."""

    workspace: Path
    home: Path
    tmp: Path

    @classmethod
    def make(cls, root: Path) -> Folders:
        """Fresh ones below ``root``."""
        made = cls(root / "workspace", root / "home", root / "tmp")
        for folder in (made.workspace, made.home, made.tmp):
            folder.mkdir(parents=True)
        return made


@dataclass(frozen=True, slots=True)
class Places:
    """Where a job sees its folders and the installed programs."""

    workspace: str
    home: str
    tmp: str
    installs: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or folder of this machine that a job may read, and where it sees it."""

    host: Path
    seen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Beside PATH, HOME, TMPDIR, LANG and TERM: all it gets; nothing of this process's environment."""
    cwd: str
    seconds: float
    folders: Folders
    stdout: Path
    stderr: Path
    path: tuple[str, ...] = ()
    """Folders to put first on PATH."""
    mounts: tuple[Mount, ...] = ()
    resolv: Path | None = None
    """Its ``/etc/resolv.conf``, where a runner gives a job an /etc of its own; None: this machine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended. When this exists, nothing that the job started still runs."""

    exit_code: int | None = None
    """None when it was ended from outside or never started."""
    timed_out: bool = False
    not_started: str | None = None
    """Why it could not be started."""
    seconds: float = 0.0


class Runner(Protocol):
    name: str

    def check(self) -> None:
        """Raises ``Unavailable`` where this runner cannot work."""

    def places(self, folders: Folders, installs: Path) -> Places: ...

    async def run(self, job: Job) -> Ending:
        """Never raises for what the job does; on cancellation everything is ended before it raises."""
