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


def call(tool: Tool, file: str, old: str, new: str) -> str:
    """A tool call as a model writes it, its arguments without blanks, as pi writes them back: so a session stays one
    row."""
    arguments: dict[Tool, object] = {
        Tool.WRITE: {"path": file, "content": new},
        Tool.EDIT: {"path": file, "edits": [{"oldText": old, "newText": new}]},
        Tool.BASH: {"command": f'rm "{file}"'},
        Tool.READ: {"path": file},
    }
    said = json.dumps(arguments[tool], separators=(",", ":"))
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {said}}}\n</tool_call>'


def asked(prompt: str) -> tuple[str, str, str] | None:
    """File, old and new word of a request that was made like ours."""
    words = re.findall(r'"([^"]+)"', prompt)
    match words:
        case [new, file] if prompt.startswith("Write"):
            return file, NONE, new
        case [old, new, file]:
            return file, old, new
        case [file]:
            return file, NONE, NONE
    return None
