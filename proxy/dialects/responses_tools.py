"""The tools of the responses format as chat functions, and the way back from a call's name to the declared tool.

Owns the mapping of names: a custom tool becomes a function of one string, a namespace's tools become functions named
``namespace__tool``. What an engine cannot run (hosted tools) is left out and named. The one non-obvious fact: the
mapping is made anew from each request, so a call in the history and a call in the answer meet by name alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

FUNCTION: Final = "function"
CUSTOM: Final = "custom"
LOCAL_SHELL: Final = "local_shell"
INPUT: Final = "input"
"""The one argument of a custom tool's function."""
JOINT: Final = "__"

_NO_PARAMETERS: Final = Raw(b'{"type":"object","properties":{}}')
_INPUT_PARAMETERS: Final = Raw(
    b'{"type":"object","properties":{"input":{"type":"string","description":"The whole input of the tool, as it is."}},'
    b'"required":["input"]}'
)
_SHELL_PARAMETERS: Final = Raw(
    b'{"type":"object","properties":{"command":{"type":"array","items":{"type":"string"},'
    b'"description":"The program and its arguments."},"working_directory":{"type":"string"},'
    b'"timeout_ms":{"type":"integer"}},"required":["command"]}'
)


class Format(msgspec.Struct):
    type: str = "text"
    syntax: str | None = None
    definition: str | None = None


class Tool(msgspec.Struct):
    type: str = ""
    name: str | None = None
    description: str | None = None
    parameters: Raw = Raw(b"null")
    format: Format | None = None
    tools: list[Tool] | None = None
    """Of a namespace."""


@dataclass(frozen=True, slots=True)
class Declared:
    kind: str
    name: str
    namespace: str | None = None


def flat_name(name: str, namespace: str | None) -> str:
    return f"{namespace}{JOINT}{name}" if namespace else name


@dataclass(frozen=True, slots=True)
class Tools:
    functions: Sequence[Mapping[str, Any]]
    """Chat's ``tools``."""
    declared: Mapping[str, Declared]
    """By the name the engine knows."""
    dropped: Sequence[Mapping[str, Any]]
    """A recorded notice for each tool that the engine is not told of."""

    def find(self, name: str) -> Declared:
        """A name nobody declared is a function's: the harness knows what to say to it."""
        return self.declared.get(name, Declared(FUNCTION, name))

    def only(self, names: Iterable[str]) -> Tools:
        """The allowed ones."""
        kept = set(names)
        functions = [function for function in self.functions if function["function"]["name"] in kept]
        return Tools(functions, self.declared, self.dropped)


def translate_tools(tools: Sequence[Tool]) -> Tools:
    functions: list[Mapping[str, Any]] = []
    declared: dict[str, Declared] = {}
    dropped: list[Mapping[str, Any]] = []
    for tool, namespace in _flatten(tools):
        entry = _declare(tool, namespace)
        if entry is None:
            dropped.append({"edit": "dropped_tool", "type": tool.type, "name": tool.name})
            continue
        name = flat_name(entry.name, namespace)
        if name in declared:
            dropped.append({"edit": "dropped_tool", "type": tool.type, "name": name, "cause": "declared twice"})
            continue
        declared[name] = entry
        functions.append({"type": "function", "function": _function(tool, entry, name)})
    return Tools(functions, declared, dropped)


def _flatten(tools: Sequence[Tool]) -> Iterable[tuple[Tool, str | None]]:
    for tool in tools:
        if tool.type == "namespace":
            for inner in tool.tools or ():
                yield inner, tool.name
        else:
            yield tool, None


def _declare(tool: Tool, namespace: str | None) -> Declared | None:
    if tool.type == LOCAL_SHELL:
        return Declared(LOCAL_SHELL, LOCAL_SHELL)
    if tool.type in (FUNCTION, CUSTOM) and tool.name:
        return Declared(tool.type, tool.name, namespace)
    return None


def _function(tool: Tool, entry: Declared, name: str) -> dict[str, Any]:
    if entry.kind == LOCAL_SHELL:
        return {"name": name, "description": "Runs a command and gives its output.", "parameters": _SHELL_PARAMETERS}
    description = tool.description
    parameters = tool.parameters if bytes(tool.parameters) != b"null" else _NO_PARAMETERS
    if entry.kind == CUSTOM:
        parameters = _INPUT_PARAMETERS
        if tool.format is not None and tool.format.definition:
            rule = f"The input follows this {tool.format.syntax or ''} grammar:\n{tool.format.definition}"
            description = f"{description}\n\n{rule}" if description else rule
    head = {"name": name} if description is None else {"name": name, "description": description}
    return head | {"parameters": parameters}


def custom_arguments(text: str) -> str:
    """A custom tool's input as its function's arguments, spaced as models write JSON."""
    return f'{{"{INPUT}": {msgspec.json.encode(text).decode()}}}'


class _CustomArguments(msgspec.Struct, forbid_unknown_fields=True):
    input: str


def custom_input(arguments: str) -> str:
    """The way back; arguments that are no such object are the input as they stand."""
    try:
        return msgspec.json.decode(arguments, type=_CustomArguments).input
    except (msgspec.DecodeError, RecursionError):
        return arguments
