"""Content blocks of the messages format as parts of a chat message: text, images, documents.

Owns what can be shown to an engine and what is left out with a notice. The one non-obvious fact: text blocks are
joined by a line break, as engines join the text parts of a chat message, so that a list and a string are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from forge.proxy.dialects.asked import NULL


class Source(msgspec.Struct):
    """Of an image or a document."""

    type: str = ""
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | list[Block] | None = None


class Block(msgspec.Struct):
    """Every field of every block that is translated."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = NULL
    tool_use_id: str | None = None
    content: Raw = NULL
    is_error: bool | None = None
    tool_name: str | None = None


Content = str | list[Block] | None
Part = dict[str, Any]
_blocks = msgspec.json.Decoder(Content)


def joined(parts: Iterable[Part]) -> str:
    return "\n".join(part["text"] for part in parts)


def chat_parts(content: Content) -> tuple[list[Part], list[Mapping[str, Any]]]:
    """The parts, and a notice for each block that has no place in chat."""
    if not isinstance(content, list):
        return ([_text(content)] if content else []), []
    parts: list[Part] = []
    dropped: list[Mapping[str, Any]] = []
    for block in content:
        part = _part(block)
        if part is None:
            dropped.append({"edit": "dropped_block", "type": block.type} | _cause(block))
        elif part != _text(""):
            parts.append(part)
    return parts, dropped


def _part(block: Block) -> Part | None:
    """None for a block that cannot be shown."""
    source = block.source if isinstance(block.source, Source) else None
    if block.type == "text":
        return _text(block.text or "")
    if block.type == "image":
        url = _url(source)
        return None if url is None else {"type": "image_url", "image_url": {"url": url}}
    if block.type == "document":
        text = _document(source)
        return None if text is None else _titled(block, text)
    if block.type == "search_result":
        return _titled(block, _nested(block.content))
    if block.type == "tool_reference":
        # The tool itself is declared in ``tools``: what the search found is its name.
        return _text(block.tool_name or "")
    return None


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _titled(block: Block, text: str) -> Part:
    return _text("\n".join(line for line in (block.title, block.context, text) if line))


def _url(source: Source | None) -> str | None:
    if source is None:
        return None
    if source.type == "base64" and source.data:
        return f"data:{source.media_type or 'image/png'};base64,{source.data}"
    return source.url if source.type == "url" else None


def _document(source: Source | None) -> str | None:
    """The text of a document that is text."""
    if source is None:
        return None
    if source.type == "text":
        return source.data
    if source.type == "content" and source.content is not None:
        parts, _ = chat_parts(source.content)
        return joined(part for part in parts if part["type"] == "text")
    return None


def _nested(content: Raw) -> str:
    try:
        parts, _ = chat_parts(_blocks.decode(content))
    except msgspec.DecodeError:
        return ""
    return joined(part for part in parts if part["type"] == "text")


def _cause(block: Block) -> dict[str, str]:
    """Why an image or a document could not be shown."""
    if isinstance(block.source, Source) and block.type in ("image", "document"):
        return {"source": block.source.media_type or block.source.type}
    return {}
