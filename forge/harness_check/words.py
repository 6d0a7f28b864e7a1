"""The scripted policy's tokenizer and chat template: by words, exactly reversible, append-only. Pure.

The non-obvious fact: a tool call's arguments are parsed and written again when history is rendered, as vLLM and the
common templates do, so that a harness which only writes the same JSON with other blanks does not part from its own
history; one that changes what the JSON says does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

BEGIN: Final = "<|im_start|>"
END: Final = "<|im_end|>"
PIECE: Final = re.compile(r"<\|im_start\|>|<\|im_end\|>|<tool_call>|</tool_call>| ?\w+|\s|[^\w\s]")


class Words:
    """Ids are given at first sight: stable within one server."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def encode(self, text: str) -> list[int]:
        return [self._id(piece) for piece in PIECE.findall(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._pieces[each] for each in ids)

    def _id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]


def render(request: Mapping[str, Any]) -> str:
    """The prompt of a chat request: tools in a block of their own, then every message, then the assistant's turn."""
    parts = []
    if request.get("tools"):
        parts.append(f"{BEGIN}tools\n{json.dumps(request['tools'])}{END}\n")
    for message in request["messages"]:
        parts.append(f"{BEGIN}{message['role']}\n{spoken(message)}{END}\n")
    return "".join(parts) + f"{BEGIN}assistant\n"


def spoken(message: Mapping[str, Any]) -> str:
    """A message as the template writes it, and as the policy samples it."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = (call["function"] for call in message.get("tool_calls") or ())
    return str(content) + "".join(tool_call(call["name"], call["arguments"]) for call in calls)


def tool_call(name: str, arguments: str) -> str:
    with suppress(ValueError):  # what is no JSON stands as it is
        arguments = json.dumps(json.loads(arguments))
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
