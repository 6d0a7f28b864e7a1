"""The tools of the messages format as chat functions, and the choice among them.

Owns which tools an engine can be told of: those with a schema. What only the vendor's own service runs (web search,
code execution, MCP servers) is left out with a notice. The one non-obvious fact: a deferred tool is declared like any
other, since nobody here would load it later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.asked import NULL

CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
"""The choices that name no tool, and chat's words for them."""


class Tool(msgspec.Struct):
    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: Raw = NULL


class Choice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    members: Mapping[str, bytes]
    """Chat's own: tools, tool_choice, parallel_tool_calls."""
    notices: Sequence[Mapping[str, Any]]


def translate_tools(tools: Sequence[Tool], choice: Choice | None) -> Tools:
    functions: dict[str, dict[str, Any]] = {}
    notices: list[Mapping[str, Any]] = []
    for tool in tools:
        if not tool.name or tool.input_schema == NULL:
            notices.append({"edit": "dropped_tool", "type": tool.type, "name": tool.name})
        elif tool.name in functions:
            notices.append({"edit": "dropped_tool", "type": tool.type, "name": tool.name, "cause": "declared twice"})
        else:
            functions[tool.name] = _function(tool)
    members: dict[str, bytes] = {}
    if functions:
        members["tools"] = msgspec.json.encode(list(functions.values()))
    if functions and choice is not None:
        if choice.disable_parallel_tool_use:
            members["parallel_tool_calls"] = b"false"
        chosen = _choice(choice, functions)
        if chosen is None:
            notices.append({"edit": "dropped_choice", "type": choice.type, "name": choice.name})
        else:
            members["tool_choice"] = msgspec.json.encode(chosen)
    return Tools(members, notices)


def _function(tool: Tool) -> dict[str, Any]:
    head = {"name": tool.name} if tool.description is None else {"name": tool.name, "description": tool.description}
    return {"type": "function", "function": head | {"parameters": tool.input_schema}}


def _choice(choice: Choice, functions: Mapping[str, Any]) -> Any:
    """None for a choice of what is not there."""
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}} if choice.name in functions else None
    return CHOICES.get(choice.type)
