"""The content blocks of an answer as they grow: thinking, text, and the use of tools.

Each block knows the object that opens it, the delta that extends it, the one that ends it, and its final object; it
must not know the order of blocks or what ends an answer (``messages_answer``). The non-obvious facts: a tool's input
goes through deltas alone, for clients ignore what stands in the opening; and a signature is a digest of the thinking,
so it is the same whenever the same was thought.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw

from forge.proxy.splice import UNREADABLE

SIGNATURE_MARK: Final = "forge1."
ID: Final = re.compile(r"[\x21-\x7e]{1,40}")
"""An engine's call id that clients take as it is."""
UNPARSED: Final = "__unparsedToolInput"
"""Holds the text of an input that is no JSON object, where an object must stand; the word is Claude Code's own."""
Delta = dict[str, Any]


class ContentBlock(Protocol):
    acts: bool
    """The client can act on it as soon as it has ended."""

    def opened(self) -> dict[str, Any]: ...

    def more(self, text: str) -> Delta: ...

    def last(self) -> Delta | None:
        """The delta that precedes the end, if there is one."""

    def object(self) -> dict[str, Any]: ...


class Text:
    acts: bool = False

    def __init__(self) -> None:
        self._texts: list[str] = []

    def opened(self) -> dict[str, Any]:
        return {"type": "text", "text": ""}

    def more(self, text: str) -> Delta:
        self._texts.append(text)
        return {"type": "text_delta", "text": text}

    def last(self) -> Delta | None:
        return None

    def object(self) -> dict[str, Any]:
        return {"type": "text", "text": "".join(self._texts)}


class Thinking:
    """What a reasoning parser told apart."""

    acts: bool = False

    def __init__(self) -> None:
        self._texts: list[str] = []

    def opened(self) -> dict[str, Any]:
        return {"type": "thinking", "thinking": "", "signature": ""}

    def more(self, text: str) -> Delta:
        self._texts.append(text)
        return {"type": "thinking_delta", "thinking": text}

    def last(self) -> Delta | None:
        return {"type": "signature_delta", "signature": sign("".join(self._texts))}

    def object(self) -> dict[str, Any]:
        text = "".join(self._texts)
        return {"type": "thinking", "thinking": text, "signature": sign(text)}


class ToolUse:
    """The engine's arguments are never repaired."""

    acts: bool = True

    def __init__(self, tool_id: str, name: str) -> None:
        self._head = {"type": "tool_use", "id": tool_id, "name": name}
        self._arguments: list[str] = []

    def opened(self) -> dict[str, Any]:
        return self._head | {"input": {}}

    def more(self, text: str) -> Delta:
        self._arguments.append(text)
        return {"type": "input_json_delta", "partial_json": text}

    def last(self) -> Delta | None:
        return None

    def object(self) -> dict[str, Any]:
        return self._head | {"input": _input("".join(self._arguments))}


def sign(thinking: str) -> str:
    digest = hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).digest()
    return SIGNATURE_MARK + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _input(arguments: str) -> Any:
    if not arguments:
        return {}
    try:
        msgspec.json.decode(arguments, type=dict[str, Raw])
        return Raw(arguments.encode())
    except UNREADABLE:
        return {UNPARSED: {"raw": arguments}}
