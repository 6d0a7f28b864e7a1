"""Turns the workspace that a harness left into a reward, under the same confinement as the harness.

A grader works on a copy of the workspace in a sandbox of its own, because grading mostly means running what a model
wrote. The rule that matters: a grader that could not judge (it crashed, hung, was not found, answered nonsense) gives
no reward and a reason, never 0; for a command, an exit code from 1 to 125 is a judgement, others are not.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

import msgspec

from forge import grader_child, workspace
from forge.runners.base import Ending, Folders, Job, Mount, Runner
from forge.storage.errors import BadInput
from forge.tasks import Grader, Task

JUDGED_MAX: Final = 125
"""Shell convention: 126 and 127 are commands that could not be run, above are signals."""
REASON_MAX: Final = 500
PREFIXES: Final = tuple(sorted({sys.base_prefix, sys.prefix}))
"""Where this Python and its packages lie: a Python grader may import them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A reward, or None and the reason."""

    reward: float | None = None
    components: Mapping[str, float] | None = None
    reason: str | None = None


class Graders:
    """The graders of a run. ``code`` is a folder of its own, where the code of Python graders is gathered once."""

    def __init__(self, runner: Runner, code: Path) -> None:
        self._runner = runner
        self._code = code

    def gather(self, tasks: Sequence[Task], beside: Path | None) -> None:
        """Copy the top-level modules of all Python graders: only they are seen, not what lies around them.

        They are looked for in the working directory, ``beside`` (the folder of the tasks file), and where Python looks.
        """
        self._code.mkdir()
        shutil.copyfile(grader_child.__file__, self._code / "grader_child.py")
        named = {task.grader.python for task in tasks if task.grader is not None and task.grader.python is not None}
        for top in {name.partition(":")[0].partition(".")[0] for name in named}:
            _gather(top, [str(Path.cwd()), *([str(beside)] if beside else []), *sys.path], self._code)

    async def grade(
        self, task: Task, left: Path, *, output: str, calls: Sequence[Any], root: Path, kept: Path
    ) -> Grade:
        """Grade the workspace ``left`` in fresh folders below ``root``; what the grader prints stays in ``kept``."""
        grader = task.grader
        if grader is None:
            return Grade(reason="the task has no grader")
        folders = Folders.make(root)
        try:
            await asyncio.to_thread(workspace.copy, left, folders.workspace)
        except (OSError, workspace.TooLarge) as error:
            return Grade(reason=f"the workspace could not be copied for the grader: {error}")
        stdout, stderr = kept / "grader.stdout", kept / "grader.stderr"
        job = self._job(task, grader, folders, stdout, stderr, output=output, calls=calls)
        ending = await self._runner.run(job)
        if (failure := _failure(ending, grader)) is not None:
            return Grade(reason=failure)
        said = stdout.read_text(errors="replace")
        if grader.command is not None:
            return _judge_command(ending, said, stderr)
        return _judge_python(ending, said, stderr)

    def _job(
        self,
        task: Task,
        grader: Grader,
        folders: Folders,
        stdout: Path,
        stderr: Path,
        *,
        output: str,
        calls: Sequence[Any],
    ) -> Job:
        places = self._runner.places(folders, self._code)
        argv: tuple[str, ...] = ("/bin/sh", "-c", grader.command or "")
        mounts: tuple[Mount, ...] = ()
        if grader.python is not None:
            request: dict[str, Any] = {"function": grader.python, "workspace": places.workspace, "output": output}
            request |= {"task": task.row, "calls": calls}
            (folders.home / "request.json").write_bytes(msgspec.json.encode(request))
            child = f"{places.installs}/grader_child.py"
            argv = (sys.executable, "-I", child, places.installs, f"{places.home}/request.json")
            mounts = (*(Mount(Path(prefix), prefix) for prefix in PREFIXES), Mount(self._code, places.installs))
        return Job(
            argv=argv,
            env={},
            cwd=places.workspace,
            seconds=grader.timeout,
            folders=folders,
            stdout=stdout,
            stderr=stderr,
            mounts=mounts,
        )


def _gather(top: str, where: Sequence[str], code: Path) -> None:
    spec = PathFinder.find_spec(top, where) or importlib.util.find_spec(top)
    if spec is None:
        raise BadInput(f"no module {top!r} for the grader", "start forge in the folder that holds it, or install it")
    if spec.submodule_search_locations:
        source = next(iter(spec.submodule_search_locations))
        if not _installed(source):
            shutil.copytree(source, code / top, ignore=shutil.ignore_patterns("__pycache__"))
    elif spec.has_location and spec.origin is not None and not _installed(spec.origin):
        shutil.copyfile(spec.origin, code / Path(spec.origin).name)


def _installed(path: str) -> bool:
    return any(Path(path).is_relative_to(prefix) for prefix in PREFIXES)


def _failure(ending: Ending, grader: Grader) -> str | None:
    if ending.not_started is not None:
        return f"the grader could not be started: {ending.not_started}"[:REASON_MAX]
    if ending.timed_out:
        return f"the grader took more than {grader.timeout:g} s"
    if ending.exit_code is None or not 0 <= ending.exit_code <= JUDGED_MAX:
        return f"the grader could not run or was killed: exit code {ending.exit_code}"
    return None


def _judge_command(ending: Ending, said: str, stderr: Path) -> Grade:
    if ending.exit_code != 0:
        return Grade(reward=0.0)
    lines = said.strip().splitlines()
    try:
        number = float(lines[-1])
    except (IndexError, ValueError):
        return Grade(reward=1.0)
    if not math.isfinite(number):
        return Grade(reason=f"the grader's last line is {lines[-1]!r}, not a finite number")
    return Grade(reward=number)


def _judge_python(ending: Ending, said: str, stderr: Path) -> Grade:
    if ending.exit_code != 0:
        last = stderr.read_text(errors="replace").strip().splitlines()[-1:]
        return Grade(reason=f"the grader failed: {''.join(last) or f'exit code {ending.exit_code}'}"[:REASON_MAX])
    try:
        result = msgspec.json.decode(said, type=bool | float | dict[str, Any])
        if isinstance(result, dict):
            reward = msgspec.convert(result.get("reward"), float)
            return Grade(reward=reward, components=msgspec.convert(result.get("components"), dict[str, float] | None))
    except msgspec.DecodeError:
        return Grade(reason=f"the grader returned neither a number nor a reward: {said.strip()}"[:REASON_MAX])
    return Grade(reward=float(result))
