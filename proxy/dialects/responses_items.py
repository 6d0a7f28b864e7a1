"""The output items of a response as they grow: reasoning, text, and the calls of tools.

Each item knows the events that open it, extend it and end it, and its final object; it must not know the order of
items or what ends an answer (``responses_answer``). The one non-obvious fact: an item's object in its ``done`` event
and in the final response is the same dict, so a stream and its final object cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import msgspec

from forge.proxy.dialects.responses_input import hide_reasoning
from forge.proxy.dialects.responses_tools import CUSTOM, LOCAL_SHELL, Declared, Tools, custom_input

Event = tuple[str, dict[str, Any]]
"""Its type, and its members but for ``type`` and ``sequence_number``."""
CALL_ID_LEN: Final = 40
"""Longest tool call id that is handed on: some clients refuse longer ones."""


class OutputItem(Protocol):
    def opened(self) -> Iterator[Event]: ...

    def ended(self, status: str) -> Iterator[Event]:
        """All but ``output_item.done``."""

    def object(self, status: str) -> dict[str, Any]: ...


class Text:
    """An assistant message of one text part."""

    def __init__(self, item_id: str, index: int) -> None:
        self._at: dict[str, Any] = {"item_id": item_id, "output_index": index, "content_index": 0}
        self._head: dict[str, Any] = {"type": "message", "id": item_id, "role": "assistant"}
        self._texts: list[str] = []

    def opened(self) -> Iterator[Event]:
        item = self._head | {"status": "in_progress", "content": []}
        yield "response.output_item.added", {"output_index": self._at["output_index"], "item": item}
        yield "response.content_part.added", self._at | {"part": self._part("")}

    def more(self, text: str) -> Event:
        self._texts.append(text)
        return "response.output_text.delta", self._at | {"delta": text, "logprobs": []}

    def ended(self, status: str) -> Iterator[Event]:
        text = "".join(self._texts)
        yield "response.output_text.done", self._at | {"text": text, "logprobs": []}
        yield "response.content_part.done", self._at | {"part": self._part(text)}

    def object(self, status: str) -> dict[str, Any]:
        return self._head | {"status": status, "content": [self._part("".join(self._texts))]}

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class Reasoning:
    """What a reasoning parser told apart, as a summary: the form that harnesses show and send back."""

    def __init__(self, item_id: str, index: int, *, hides: bool) -> None:
        self._at: dict[str, Any] = {"item_id": item_id, "output_index": index, "summary_index": 0}
        self._head: dict[str, Any] = {"type": "reasoning", "id": item_id}
        self._hides = hides
        self._texts: list[str] = []

    def opened(self) -> Iterator[Event]:
        item = self._head | {"summary": []}
        yield "response.output_item.added", {"output_index": self._at["output_index"], "item": item}
        yield "response.reasoning_summary_part.added", self._at | {"part": {"type": "summary_text", "text": ""}}

    def more(self, text: str) -> Event:
        self._texts.append(text)
        return "response.reasoning_summary_text.delta", self._at | {"delta": text}

    def ended(self, status: str) -> Iterator[Event]:
        text = "".join(self._texts)
        yield "response.reasoning_summary_text.done", self._at | {"text": text}
        yield "response.reasoning_summary_part.done", self._at | {"part": {"type": "summary_text", "text": text}}

    def object(self, status: str) -> dict[str, Any]:
        text = "".join(self._texts)
        hidden = {"encrypted_content": hide_reasoning(text)} if self._hides else {}
        return self._head | {"summary": [{"type": "summary_text", "text": text}]} | hidden


class ToolCall:
    """A call of a function, a custom tool or the local shell; the engine's arguments are never repaired."""

    def __init__(self, call_id: str, number: int, index: int, engine_id: str | None, name: str, tools: Tools) -> None:
        tool = tools.find(name)
        self._tool = tool
        self._arguments: list[str] = []
        prefix = {CUSTOM: "ctc", LOCAL_SHELL: "lsh"}.get(tool.kind, "fc")
        self._at: dict[str, Any] = {"item_id": f"{prefix}_{call_id}_{number}", "output_index": index}
        usable = engine_id is not None and 0 < len(engine_id) <= CALL_ID_LEN
        self._call_id = engine_id if usable else f"call_{call_id}_{number}"

    def opened(self) -> Iterator[Event]:
        item = self._object("in_progress", "")
        yield "response.output_item.added", {"output_index": self._at["output_index"], "item": item}

    def more(self, arguments: str) -> Event | None:
        """Nothing where a piece of the arguments is no piece of what the harness is given."""
        self._arguments.append(arguments)
        if self._tool.kind in (CUSTOM, LOCAL_SHELL):
            return None
        return "response.function_call_arguments.delta", self._at | {"delta": arguments}

    def ended(self, status: str) -> Iterator[Event]:
        arguments = "".join(self._arguments)
        if self._tool.kind == CUSTOM:
            text = custom_input(arguments)
            yield "response.custom_tool_call_input.delta", self._at | {"delta": text}
            yield "response.custom_tool_call_input.done", self._at | {"input": text}
        elif self._tool.kind != LOCAL_SHELL:
            name = self._tool.name
            yield "response.function_call_arguments.done", self._at | {"name": name, "arguments": arguments}

    def object(self, status: str) -> dict[str, Any]:
        return self._object(status, "".join(self._arguments))

    def _object(self, status: str, arguments: str) -> dict[str, Any]:
        head = {"id": self._at["item_id"], "call_id": self._call_id, "status": status}
        if self._tool.kind == LOCAL_SHELL:
            return {"type": "local_shell_call"} | head | {"action": _shell_action(arguments)}
        named = _named(self._tool)
        if self._tool.kind == CUSTOM:
            return {"type": "custom_tool_call"} | head | named | {"input": custom_input(arguments)}
        return {"type": "function_call"} | head | named | {"arguments": arguments}


def _named(tool: Declared) -> dict[str, Any]:
    return {"name": tool.name} if tool.namespace is None else {"name": tool.name, "namespace": tool.namespace}


class _ShellArguments(msgspec.Struct, omit_defaults=True):
    command: list[str] = []
    working_directory: str | None = None
    timeout_ms: int | None = None


def _shell_action(arguments: str) -> dict[str, Any]:
    """The local shell has no field for arguments that cannot be read: they become a command that says so."""
    try:
        read = msgspec.json.decode(arguments or "{}", type=_ShellArguments)
    except (msgspec.DecodeError, RecursionError):
        read = _ShellArguments(command=[arguments])
    return {"type": "exec", "env": {}, "command": read.command} | {
        name: value for name, value in msgspec.to_builtins(read).items() if name != "command"
    }
