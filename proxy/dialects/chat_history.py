"""A chat history in the words an engine takes: the typed edits of the chat lane's messages.

Owns three edits, each recorded: a ``developer`` message becomes a ``system`` one where the engine's templates know no
such role (they leave it out without a word); a thought that comes back under its older name ``reasoning_content`` gets
the newer one too; and images in a tool's result move to a user message behind the results where there is no place for
them. Everything else stays as it came, to the byte; a history that needs neither
is not even read. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.engines.base import Wire
from forge.proxy.sessions.turns import DEVELOPER, IMAGE, OLD_KEY, SIGNS, Turn

OLD_NAME: Final = "reasoning_content"
NEW_NAME: Final = "reasoning"


class _Head(msgspec.Struct):
    role: Any = None
    content: Raw = Raw(b"null")
    reasoning: Any = None
    reasoning_content: Any = None


class _Part(msgspec.Struct):
    type: Any = None


_head: Final = msgspec.json.Decoder(_Head)
_parts: Final = msgspec.json.Decoder(list[Raw])
_part: Final = msgspec.json.Decoder(_Part)


def looked_for(wire: Wire) -> int:
    """Bits of ``SIGNS``: without any of them in it, a history stays as it is."""
    wanted = ((wire.developer_is_system, DEVELOPER), (wire.tool_text_only, IMAGE), (wire.reasoning, OLD_KEY))
    return sum(SIGNS[sign] for is_wanted, sign in wanted if is_wanted)


def fit(messages: Sequence[Turn], wire: Wire) -> tuple[bytes, list[dict[str, Any]]] | None:
    """The messages to send and the edits made; None where they stay as they are (what cannot be read stays so too:
    the engine says best what is wrong with it)."""
    try:
        made = _Fitting(wire)
        for place, turn in enumerate(messages):
            made.take(place, turn.text)
        made.flush()
    except splice.UNREADABLE:
        return None
    return (b"[" + b",".join(made.out) + b"]", made.edits) if made.edits else None


class _Fitting:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.out: list[bytes] = []
        self.edits: list[dict[str, Any]] = []
        self._images: list[bytes] = []
        """Of the tool results just seen: they follow the last of them."""

    def take(self, place: int, raw: bytes) -> None:
        head = _head.decode(raw)
        if head.role != "tool":
            self.flush()
        if head.role == "developer" and self._wire.developer_is_system:
            self.out.append(_replaced(raw, role=b'"system"'))
            self.edits.append({"edit": "role", "message": place, "asked": "developer", "sent": "system"})
        elif head.role == "tool" and self._wire.tool_text_only and IMAGE in bytes(head.content):
            self._tool(place, raw, head.content)
        elif head.role == "assistant" and self._wire.reasoning and head.reasoning_content and head.reasoning is None:
            self.out.append(_replaced(raw, **{NEW_NAME: msgspec.json.encode(head.reasoning_content)}))
            self.edits.append({"edit": "reasoning_name", "message": place, "asked": OLD_NAME, "sent": NEW_NAME})
        else:
            self.out.append(raw)

    def flush(self) -> None:
        if self._images:
            content = b"[" + b",".join(self._images) + b"]"
            self.out.append(b'{"role":"user","content":' + content + b"}")
            self._images = []

    def _tool(self, place: int, raw: bytes, content: Raw) -> None:
        parts = _parts.decode(content) if bytes(content).startswith(b"[") else []
        images = [bytes(part) for part in parts if _part.decode(part).type == "image_url"]
        if not images:
            self.out.append(raw)
            return
        rest = [bytes(part) for part in parts if _part.decode(part).type != "image_url"]
        self.out.append(_replaced(raw, content=b"[" + b",".join(rest) + b"]" if rest else b'""'))
        self._images += images
        self.edits.append({"edit": "moved_images", "message": place, "count": len(images)})


def _replaced(raw: bytes, **members: bytes) -> bytes:
    """The message with these members' values; the others' bytes as they came."""
    parts: dict[str, bytes | Raw] = dict(splice.members(raw))
    return splice.rebuild(parts | members)
