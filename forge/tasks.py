"""What agents are asked: a prompt, the files of its workspace, and who grades the outcome.

Reads tasks from JSONL, one object a line; members it does not know stay in ``row`` for the grader. Nothing is run here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from forge.storage.errors import BadInput

GRADER_SECONDS: Final = 60.0
FUNCTION: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
EXAMPLE: Final = (
    '{"id": "hello", "prompt": "Create hello.txt containing hi", "grader": {"command": "grep -qx hi hello.txt"}}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grader:
    """Exactly one of ``command`` and ``python``."""

    command: str | None = None
    """A shell command, run in a copy of the workspace."""
    python: str | None = None
    """``module:function``."""
    timeout: float = GRADER_SECONDS

    @property
    def author(self) -> str:
        """Who gave the reward, for the dataset."""
        return f"python {self.python}" if self.python else f"command {self.command}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: str
    prompt: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Text by path relative to the workspace."""
    grader: Grader | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    """The whole object as it stands in the file."""

    def write_files(self, workspace: Path) -> None:
        for name, text in self.files.items():
            path = workspace / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


def one(prompt: str) -> Task:
    """A task without files or grader."""
    if not prompt.strip():
        raise BadInput("the task is empty", "say what the agent shall do: --task 'Create hello.txt containing hi'")
    return Task(id="task", prompt=prompt, row={"id": "task", "prompt": prompt})


def read(path: Path) -> tuple[Task, ...]:
    """All tasks of a JSONL file; raises ``BadInput`` that names the file and the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # ``splitlines`` ends one at U+2028 in a prompt too
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read the tasks in {path}: {error}", "pass --tasks FILE.jsonl or --task TEXT") from error
    tasks: dict[str, Task] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            task = _task(line)
            if task.id in tasks:
                raise ValueError(f"the id {task.id!r} stands on an earlier line too")
        except ValueError as error:
            raise BadInput(f"{path}, line {number}: {error}", f"a line looks like {EXAMPLE}") from error
        tasks[task.id] = task
    if not tasks:
        raise BadInput(f"{path} holds no task", f"write one object a line, like {EXAMPLE}")
    return tuple(tasks.values())


def _task(line: str) -> Task:
    row = msgspec.json.decode(line)
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    known = {name: row[name] for name in ("id", "prompt", "files", "grader") if row.get(name) is not None}
    task = msgspec.convert({**known, "row": row}, Task)
    if not task.id or not task.prompt.strip():
        raise ValueError("`id` and `prompt` may not be empty")
    if "\0" in task.prompt:
        raise ValueError("`prompt` holds a NUL character, which no command line can carry")
    _check_paths(task.files)
    if task.grader is not None:
        _check_grader(task.grader, row["grader"])
    return task


def _check_paths(names: Iterable[str]) -> None:
    paths: dict[PurePosixPath, str] = {}
    for name in names:
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name or name.endswith("/"):
            raise ValueError(f"`files`: {name!r} is not a path inside the workspace")
        if path in paths:
            raise ValueError(f"`files`: {name!r} and {paths[path]!r} are the same file")
        paths[path] = name
    for path, name in paths.items():
        for parent in path.parents:
            if parent in paths:
                raise ValueError(f"`files`: {paths[parent]!r} cannot be a file and the folder of {name!r}")


def _check_grader(grader: Grader, row: Mapping[str, Any]) -> None:
    if unknown := set(row) - {"command", "python", "timeout"}:
        raise ValueError(f"`grader`: unknown member {min(unknown)!r}; it takes command or python, and timeout")
    if (grader.command is None) == (grader.python is None):
        raise ValueError("`grader`: give either `command` or `python`")
    if grader.python is not None and not FUNCTION.fullmatch(grader.python):
        raise ValueError(f"`grader`: {grader.python!r} is not of the form module:function")
    if not (math.isfinite(grader.timeout) and grader.timeout > 0):
        raise ValueError("`grader`: timeout is a number of seconds above 0")
