"""A chat history in the words an engine takes: the typed edits of the chat lane's messages.

Owns two edits, each recorded: a ``developer`` message becomes a ``system`` one where the engine's templates know no
such role (they leave it out without a word), and images in a tool's result move to a user message behind the results
where its template has no place for them. Everything else stays as it came, to the byte; a history that needs neither
is not even read. Pure.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.engines.base import Wire

DEVELOPER: Final = b'"developer"'
IMAGE: Final = b'"image_url"'


class _Head(msgspec.Struct):
    role: Any = None
    content: Raw = Raw(b"null")


class _Part(msgspec.Struct):
    type: Any = None


_messages: Final = msgspec.json.Decoder(list[Raw])
_head: Final = msgspec.json.Decoder(_Head)
_parts: Final = msgspec.json.Decoder(list[Raw])
_part: Final = msgspec.json.Decoder(_Part)


def fit(messages: bytes | Raw, wire: Wire) -> tuple[bytes, list[dict[str, Any]]] | None:
    """The messages to send and the edits made; None where they stay as they are (what cannot be read stays so too:
    the engine says best what is wrong with it)."""
    text = bytes(messages)
    if not (wire.developer_is_system and DEVELOPER in text) and not (wire.tool_text_only and IMAGE in text):
        return None
    try:
        made = _Fitting(wire)
        for place, raw in enumerate(_messages.decode(text)):
            made.take(place, raw)
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

    def take(self, place: int, raw: Raw) -> None:
        head = _head.decode(raw)
        if head.role != "tool":
            self.flush()
        if head.role == "developer" and self._wire.developer_is_system:
            self.out.append(_replaced(raw, role=b'"system"'))
            self.edits.append({"edit": "role", "message": place, "asked": "developer", "sent": "system"})
        elif head.role == "tool" and self._wire.tool_text_only and IMAGE in bytes(head.content):
            self._tool(place, raw, head.content)
        else:
            self.out.append(bytes(raw))

    def flush(self) -> None:
        if self._images:
            content = b"[" + b",".join(self._images) + b"]"
            self.out.append(b'{"role":"user","content":' + content + b"}")
            self._images = []

    def _tool(self, place: int, raw: Raw, content: Raw) -> None:
        parts = _parts.decode(content) if bytes(content).startswith(b"[") else []
        images = [bytes(part) for part in parts if _part.decode(part).type == "image_url"]
        if not images:
            self.out.append(bytes(raw))
            return
        rest = [bytes(part) for part in parts if _part.decode(part).type != "image_url"]
        self.out.append(_replaced(raw, content=b"[" + b",".join(rest) + b"]" if rest else b'""'))
        self._images += images
        self.edits.append({"edit": "moved_images", "message": place, "count": len(images)})


def _replaced(raw: Raw, **members: bytes) -> bytes:
    """The message with these members' values; the others' bytes as they came."""
    parts: dict[str, bytes | Raw] = dict(splice.members(bytes(raw)))
    return splice.rebuild(parts | members)
