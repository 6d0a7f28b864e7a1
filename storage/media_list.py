"""The media of a prompt, in order: what each is, by content, and where it stands.

Owns the ``media`` column. Reads the chat form that the engine was sent, of which content parts are media by their type.
Pure. The one non-obvious fact: what is behind a URL is not ours to know, so it is told apart by the URL itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec

from forge.storage.media_text import loosely, references

MARKS: Final = ('_url"', '"input_audio"', '"file"')
"""Stand in every message with media."""
TYPE: Final = '"type"'
"""Stands in every part of a content that is no plain text."""
_LONGEST: Final = max(map(len, (TYPE, *MARKS)))
PLACES: Final = ("url", "data", "file_data")
"""Where a part of some type keeps its content."""


class Medium(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str | None
    """Of its bytes; null where only a URL is known."""
    mime: str | None
    """As the request says it: ``image/png``; of sound the format alone may be known: ``audio/wav``."""
    message: int
    """Index of its message in the prompt."""
    part: int
    """Index of its part in that message's content."""
    tokens: tuple[int, int] | None = None
    """Its ids in the prompt, [start, end), where the engine says so."""
    url: str | None = None
    """Where it was to be had, if it was not in the request itself."""

    @property
    def identity(self) -> str:
        return self.sha256 or self.url or ""


_column: Final = msgspec.json.Decoder(list[Medium | str])


def shows_media(messages: str, known: int = 0) -> bool:
    """Whether there can be any: a glance. The first ``known`` characters were looked at already."""
    start = max(0, known - _LONGEST)
    if messages.find(TYPE, start) < 0:
        return False
    return any(messages.find(mark, start) >= 0 for mark in MARKS)


def media_of(messages: str) -> str | None:
    """The ``media`` column of a call with these messages (with references); None without media."""
    if not shows_media(messages):
        return None
    try:
        found = list(_media(json.loads(messages)))
    except (ValueError, RecursionError):
        return None
    return msgspec.json.encode(found).decode() if found else None


def listed(column: str | None) -> list[Medium | str]:
    """The column read; where there is no more than a hash, that alone."""
    return _column.decode(column) if column else []


def identities(column: str | None) -> list[str]:
    """What tells media apart, in order: equal placeholders hide unequal images."""
    return [medium if isinstance(medium, str) else medium.identity for medium in listed(column)]


def _media(messages: Any) -> Iterator[Medium]:
    for message, said in enumerate(messages if isinstance(messages, list) else ()):
        content = said.get("content") if isinstance(said, dict) else None
        for part, shown in enumerate(content if isinstance(content, list) else ()):
            if isinstance(shown, dict) and (medium := _medium(shown, message, part)) is not None:
                yield medium


def _medium(shown: dict[str, Any], message: int, part: int) -> Medium | None:
    kind = shown.get("type")
    value = shown.get(kind) if isinstance(kind, str) else None
    said = value if isinstance(value, dict) else {"url": value}
    text = next((said[place] for place in PLACES if isinstance(said.get(place), str)), None)
    if kind == "text" or not isinstance(kind, str) or (text is None and "uuid" not in shown):
        return None
    if text is None:
        return Medium(sha256=None, mime=None, message=message, part=part, url=f"uuid:{shown['uuid']}")
    form = said.get("format")
    mime = f"audio/{form}" if isinstance(form, str) and kind == "input_audio" else None
    if not text.startswith("data:"):
        if "url" in said:
            return Medium(sha256=None, mime=None, message=message, part=part, url=text)
        return Medium(sha256=_sha256(text), mime=mime, message=message, part=part)
    head, _, payload = text.removeprefix("data:").partition(",")
    inline = head.endswith(";base64")
    digest = _sha256(payload) if inline else hashlib.sha256(unquote_to_bytes(payload)).hexdigest()
    return Medium(sha256=digest, mime=head.partition(";")[0] or mime, message=message, part=part)


def _sha256(text: str) -> str:
    """Of what base64 stands for, or a reference to it."""
    if named := references(text.encode(errors="replace")):
        return named.pop()
    data = loosely(text)
    return hashlib.sha256(text.encode(errors="replace") if data is None else data).hexdigest()
