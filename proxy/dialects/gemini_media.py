"""Gemini's media parts as chat's: images, sound and film, inline or by URL.

Owns what can be said of media in chat; whether an engine can see is the engine's to say. The one non-obvious fact: a
file that was uploaded to the vendor's own store has an https URL too, which nobody but the vendor can read.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.gemini_node import Node
from forge.proxy.dialects.gemini_signature import standard_base64

INLINE: Final = "inlineData"
FILE: Final = "fileData"
MEDIA: Final = (INLINE, FILE)
SOUNDS: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav"}
"""Chat's names of audio formats, where they are not the media type's own."""
STORE: Final = "generativelanguage.googleapis.com"
SCHEMES: Final = ("http://", "https://", "data:")


def chat_media(part: Node) -> dict[str, Any]:
    """Raises ``BadRequest`` for what has no place in chat."""
    inline, file = part.node(INLINE), part.node(FILE)
    if inline is not None:
        return _inline(inline)
    if file is not None:
        return _file(file)
    raise BadRequest(f"`{part.where}` holds no media", param=part.where)


def _inline(node: Node) -> dict[str, Any]:
    kind, data = _kind(node), standard_base64(node.get("data", str) or "")
    family, _, form = kind.partition("/")
    if family == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": SOUNDS.get(form, form)}}
    if family == "text":
        try:
            return {"type": "text", "text": base64.b64decode(data, validate=True).decode()}
        except (binascii.Error, UnicodeDecodeError) as failure:
            raise BadRequest(f"`{node.place('data')}` is no text: {failure}", param=node.where) from failure
    return _by_url(node, family, f"data:{kind};base64,{data}")


def _file(node: Node) -> dict[str, Any]:
    uri = node.get("fileUri", str) or ""
    if not uri.startswith(SCHEMES) or STORE in uri:
        raise BadRequest(
            f"`{node.place('fileUri')}`: files are not stored here; send the data inline or a public URL",
            param=node.place("fileUri"),
        )
    return _by_url(node, _kind(node, default="image/*").partition("/")[0], uri)


def _by_url(node: Node, family: str, url: str) -> dict[str, Any]:
    if family not in ("image", "video", "audio"):
        place = node.place("mimeType")
        raise BadRequest(f"`{place}`: {_kind(node)!r} cannot be given to a policy", param=place)
    return {"type": f"{family}_url", f"{family}_url": {"url": url}}


def _kind(node: Node, default: str = "") -> str:
    kind = node.get("mimeType", str) or default
    return str(kind).partition(";")[0].strip().lower()
