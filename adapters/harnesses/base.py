"""What Forge needs of a harness: how to install it, what a launch of it looks like, where it leaves its traces.

An adapter turns a ``LaunchRequest`` into a ``Launch``, which is data: a runner anywhere (here, in a container, on
another host) can carry it out. It starts nothing itself and knows no proxy, no task and no grader. The non-obvious
fact: everything that reaches the model's prompt (paths, the time zone, the model's name) is the same in every session,
so that the sessions of a group share their prompt's prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import msgspec

from forge.adapters.harnesses.packages import Package, Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a runner holds the launch to."""

    seconds: float
    """Wall time; when it is over the whole process tree is ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One session to launch. Paths are as the harness will see them."""

    base_url: str
    """Ends in ``/v1``; the session's own."""
    api_key: str
    model: str
    """A name outside the harness's own catalogue: a known name changes tools and wire."""
    prompt: str
    workspace: str
    home: str
    installs: str
    """The folder that holds the installed packages."""
    context_tokens: int
    """Prompt + output tokens that the policy takes."""
    output_tokens: int
    """Output tokens to ask for in one call, where the harness insists on a number."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A process to start, with nothing left to look up. Its stdin is closed: some harnesses wait for an open one."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """What the harness needs beside PATH, HOME, LANG, TERM and TMPDIR, which the runner sets."""
    files: Mapping[str, str]
    """Text files to write first, by path relative to HOME."""
    cwd: str
    limits: Limits
    path: tuple[str, ...] = ()
    """Folders to put first on PATH."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One model call as the harness itself wrote it down."""

    prompt_tokens: int | None
    output_tokens: int | None


class HarnessAdapter(ABC):
    """One harness at one pinned version."""

    name: ClassVar[str]
    version: ClassVar[str]
    wire: ClassVar[str]
    """The dialect it speaks."""
    packages: ClassVar[tuple[Package, ...]]
    """Installed in this order; each is one folder of the cache."""
    transcripts: ClassVar[tuple[str, ...]]
    """Globs relative to HOME of the harness's own record of a session; ``*`` crosses folders."""

    @abstractmethod
    def launch(self, request: LaunchRequest) -> Launch:
        """Pure: the same request gives the same launch."""

    @abstractmethod
    def final_text(self, stdout: str) -> str:
        """The agent's last message out of what the launch printed; empty where there is none."""

    def failure(self, stdout: str) -> str:
        """Why it failed, where it says so in what it printed; else its last line on stderr has to do."""
        return ""

    def transcript(self, folder: Path) -> Sequence[Heard] | None:
        """The calls that the harness's own record tells of, in order; ``folder`` holds what ``transcripts`` matched, at
        the same relative paths. None where it keeps none, or does not count tokens."""
        return None

    def installed(self, cache: Path) -> bool:
        return all(package.installed(cache) for package in self.packages)

    def install(self, cache: Path, say: Say) -> None:
        """Bring every package into ``cache``; what is there already is left alone."""
        for package in self.packages:
            package.install(cache, say)


def origin(base_url: str) -> str:
    """``base_url`` without its ``/v1``: what clients of the Messages and Gemini wires append their paths to."""
    return base_url.removesuffix("/v1")


def no_command(prompt: str) -> str:
    """``prompt`` for a harness that takes a first word with a slash for a command of its own."""
    return f" {prompt}" if prompt.startswith("/") else prompt


def inside(folder: str, *parts: str) -> str:
    return str(PurePosixPath(folder, *parts))


def json_lines(stdout: str) -> Iterator[dict[str, Any]]:
    """The JSON objects among the lines of ``stdout``; other lines are a harness's chatter. Only a line feed ends one:
    JSON may hold U+2028 and its like as they are, and a model may say them."""
    for line in stdout.split("\n"):
        if line.startswith("{"):
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(event, dict):
                yield event


def toml_string(text: str) -> str:
    """A JSON string is a TOML basic string, but for one character."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def json_files(folder: Path, name: str) -> Iterator[Any]:
    """What the JSON files of that name (a glob) hold, wherever they lie in ``folder``; a model may have written there,
    so what is no JSON is left out."""
    for path in sorted(folder.rglob(name)):
        with suppress(msgspec.DecodeError):
            yield msgspec.json.decode(path.read_bytes())


def whole_json(stdout: str) -> dict[str, Any]:
    """``stdout`` where it is one JSON object, else an empty one."""
    try:
        told = msgspec.json.decode(stdout)
    except msgspec.DecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def line_files(folder: Path, name: str) -> Sequence[dict[str, Any]] | None:
    """The JSON objects among the lines of the files of that name (a glob), wherever they lie in ``folder``; None where
    there is no such file."""
    paths = sorted(folder.rglob(name))
    lines = (line for path in paths for line in json_lines(path.read_text(errors="replace")))
    return list(lines) if paths else None


def last(texts: Iterable[str]) -> str:
    result = ""
    for text in texts:
        result = text
    return result


def tokens(usage: object, name: str, *more: str) -> int | None:
    """A count out of a usage object as harnesses keep it, and what they count apart; None where it is not one."""
    if not isinstance(usage, dict) or not isinstance(usage.get(name), int):
        return None
    counts = (usage.get(each) for each in (name, *more))
    return sum(count for count in counts if isinstance(count, int))
