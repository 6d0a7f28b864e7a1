"""Small jobs for the runners' tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forge.runners import find
from forge.runners.base import Ending, Folders, Job, Mount


@dataclass(frozen=True, slots=True)
class Done:
    ending: Ending
    out: str
    err: str
    folders: Folders


async def run(
    root: Path,
    script: str,
    *,
    runner: str = "local",
    seconds: float = 30,
    env: Mapping[str, str] | None = None,
    mounts: tuple[Mount, ...] = (),
    argv: tuple[str, ...] | None = None,
) -> Done:
    """Run a shell script as a job with fresh folders below ``root``."""
    chosen = find(runner)
    folders = Folders.make(root / "job")
    job = Job(
        argv=argv or ("/bin/sh", "-c", script),
        env=env or {},
        cwd=chosen.places(folders, root).workspace,
        seconds=seconds,
        folders=folders,
        stdout=root / "stdout",
        stderr=root / "stderr",
        mounts=mounts,
    )
    ending = await chosen.run(job)
    out, err = (path.read_text() if path.exists() else "" for path in (job.stdout, job.stderr))
    return Done(ending, out, err, folders)
