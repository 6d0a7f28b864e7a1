"""The tool task: three requests, of which each wants another one of the harness's tools. Pure.

A request names a file; the right call leaves the workspace as the grader wants it, the three wrong ones do not.
Held-out instances are files whose names no training instance has.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from forge.tasks import Grader, Task

FIRST: Final = ("lake", "hill", "tree", "road", "moon", "star", "wind", "snow")
SECOND: Final = ("one", "two", "red", "blue", "cup", "box", "map", "key")
WORDS: Final = ("kite", "drum", "bell", "lamp", "milk", "salt", "rice", "plum")
HELD_OUT: Final = 4
"""One name in so many is held out."""
NONE: Final = "none"
"""What a call says of a word that the request does not name."""


class Request(StrEnum):
    WRITE = "write"
    REPLACE = "replace"
    DELETE = "delete"


class Tool(StrEnum):
    """Of pi's; the first three are right for the requests in their order."""

    WRITE = "write"
    EDIT = "edit"
    BASH = "bash"
    READ = "read"


RIGHT: Final = {Request.WRITE: Tool.WRITE, Request.REPLACE: Tool.EDIT, Request.DELETE: Tool.BASH}


def habit(draws: random.Random, request: Request, *, right: float, looks: float | None = None) -> Tool:
    """The tool that somebody takes for a request: the right one so often, ``read`` so often; the others share the
    rest, and ``read`` with them where nothing is said of it."""
    shares = {RIGHT[request]: right} | ({} if looks is None else {Tool.READ: looks})
    others = [tool for tool in Tool if tool not in shares]
    shares |= dict.fromkeys(others, (1.0 - sum(shares.values())) / len(others))
    return draws.choices(list(shares), list(shares.values()))[0]


@dataclass(frozen=True, slots=True)
class Instance:
    request: Request
    file: str
    old: str
    new: str

    @property
    def prompt(self) -> str:
        match self.request:
            case Request.WRITE:
                return f'Write "{self.new}" to "{self.file}".'
            case Request.REPLACE:
                return f'Replace "{self.old}" by "{self.new}" in "{self.file}".'
            case Request.DELETE:
                return f'Delete "{self.file}".'

    def task(self, name: str) -> Task:
        files = {} if self.request is Request.WRITE else {self.file: f"{self.old} stays here"}
        wanted = {
            Request.WRITE: f'[ "$(cat {self.file})" = "{self.new}" ]',
            Request.REPLACE: f'[ "$(cat {self.file})" = "{self.new} stays here" ]',
            Request.DELETE: f"[ ! -e {self.file} ]",
        }[self.request]
        grader = Grader(command=f"{wanted} 2>/dev/null")
        row = {"id": name, "prompt": self.prompt, "files": files, "grader": {"command": grader.command}}
        return Task(id=name, prompt=self.prompt, files=files, grader=grader, row=row)


def instances(seed: int, *, held_out: bool) -> Iterator[Instance]:
    """Without an end; requests take turns, so that any run of them holds as many of each."""
    draws = random.Random(f"{seed} {held_out}")
    names = [
        f"{a}-{b}.txt"
        for i, a in enumerate(FIRST)
        for j, b in enumerate(SECOND)
        if ((i + j) % HELD_OUT == 0) is held_out
    ]
    while True:
        for request in Request:
            old, new = draws.sample(WORDS, 2)
            yield Instance(request, draws.choice(names), old, new)


def call(tool: Tool, instance: Instance) -> str:
    """A tool call as a model writes it, its arguments without blanks, as pi writes them back: so a session stays one
    row."""
    arguments: dict[Tool, object] = {
        Tool.WRITE: {"path": instance.file, "content": instance.new},
        Tool.EDIT: {"path": instance.file, "edits": [{"oldText": instance.old, "newText": instance.new}]},
        Tool.BASH: {"command": f'rm "{instance.file}"'},
        Tool.READ: {"path": instance.file},
    }
    said = json.dumps(arguments[tool], separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {said}}}\n</tool_call>'


def asked(prompt: str) -> Instance | None:
    """What a request that was made like ours names, and ``NONE`` for the words that it does not."""
    words = re.findall(r'"([^"]+)"', prompt)
    match words:
        case [new, file] if prompt.startswith("Write"):
            return Instance(Request.WRITE, file, NONE, new)
        case [old, new, file]:
            return Instance(Request.REPLACE, file, old, new)
        case [file]:
            return Instance(Request.DELETE, file, NONE, NONE)
    return None
