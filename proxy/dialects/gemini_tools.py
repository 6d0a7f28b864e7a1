"""The tools of a Gemini request as chat functions, and its tool choice.

Owns which tools the engine is told of: declared functions, in whichever of the two schema languages; hosted tools
(search, code execution) are left out and named. The one non-obvious fact: a choice may name functions, which chat can
do for one only, so of several only those are offered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.gemini_node import Node
from forge.proxy.dialects.gemini_schema import json_schema

DECLARATIONS: Final = "functionDeclarations"
NO_PARAMETERS: Final = Raw(b'{"type":"object","properties":{}}')
MODES: Final = {"MODE_UNSPECIFIED": "auto", "AUTO": "auto", "ANY": "required", "NONE": "none"}


@dataclass(slots=True)
class Tools:
    functions: list[Mapping[str, Any]] = field(default_factory=list)
    """Chat's ``tools``."""
    notices: list[Mapping[str, Any]] = field(default_factory=list)
    choice: Any = None
    """Chat's ``tool_choice``; None where nothing was chosen."""

    def members(self) -> dict[str, bytes | Raw]:
        if not self.functions:
            return {}
        members: dict[str, bytes | Raw] = {"tools": msgspec.json.encode(self.functions)}
        if self.choice is not None:
            members["tool_choice"] = msgspec.json.encode(self.choice)
        return members


def translate_tools(request: Node) -> Tools:
    """Raises ``BadRequest``."""
    tools = Tools()
    known: set[str] = set()
    for node in request.nodes("tools"):
        tools.notices += [{"edit": "dropped_tool", "type": kind} for kind in node if kind != DECLARATIONS]
        for declaration in node.nodes(DECLARATIONS):
            name = declaration.get("name", str)
            if not name:
                raise BadRequest(f"`{declaration.place('name')}` is missing", param=declaration.where)
            if name in known:
                tools.notices.append({"edit": "dropped_tool", "name": name, "cause": "declared twice"})
                continue
            known.add(name)
            tools.functions.append({"type": "function", "function": _function(name, declaration)})
    config = request.node("toolConfig")
    calling = config.node("functionCallingConfig") if config is not None else None
    if calling is not None:
        _choose(tools, calling)
    return tools


def _function(name: str, declaration: Node) -> dict[str, Any]:
    description = declaration.get("description", str)
    parameters: Any = declaration.raw("parametersJsonSchema")
    if parameters is None and "parameters" in declaration:
        parameters = json_schema(declaration.get("parameters", Any))
    head = {"name": name} if description is None else {"name": name, "description": description}
    return head | {"parameters": NO_PARAMETERS if parameters is None else parameters}


def _choose(tools: Tools, calling: Node) -> None:
    asked = calling.get("mode", str) or "AUTO"
    mode = MODES.get(asked.upper())
    if mode is None:
        # VALIDATED and what is still to come: the model is free to call or not.
        tools.notices.append({"edit": "dropped_choice", "type": asked})
        mode = "auto"
    allowed: Sequence[str] = calling.get("allowedFunctionNames", list[str]) or ()
    if allowed:
        tools.functions = [function for function in tools.functions if function["function"]["name"] in allowed]
        if not tools.functions:
            place = calling.place("allowedFunctionNames")
            raise BadRequest(f"`{place}` names no declared function", param=place)
    tools.choice = mode
    if mode == "required" and len(allowed) == 1:
        tools.choice = {"type": "function", "function": {"name": allowed[0]}}
