"""Edits of JSON documents as bytes: everything that is not edited stays as it came, to the byte.

Owns two edits: members added to or replaced in a request's top level, and members cut from an answer (its top level
and its ``choices``). It knows no member by name. The one non-obvious fact: inside a JSON string a quote is always
escaped, so the bytes ``"name"`` with no backslash before them are that very name, as a key or as a whole string. If
they occur as often as the parser found the member where it belongs, a byte search has found the member itself;
whenever the counts differ, the parser's own offsets are taken instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Raw

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the parser raises on bytes that are no such document, however broken or deep."""
_BLANK: Final = b" \t\r\n"
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_FOLD_FROM: Final = 4096
"""Documents shorter than this are parsed whole; in longer ones the id arrays are folded away first."""
_members: Final = msgspec.json.Decoder(dict[str, Raw])


def members(document: bytes) -> dict[str, Raw]:
    """The top level's members, of duplicates the last. Raises one of ``UNREADABLE`` if it is no JSON object."""
    return _members.decode(document)


def append(document: bytes, added: Mapping[str, bytes]) -> bytes:
    """``added`` at the end of a JSON object's top level."""
    if not added:
        return document
    end = document.rindex(b"}")
    before = document[:end].rstrip(_BLANK)
    text = b",".join(msgspec.json.encode(name) + b":" + value for name, value in added.items())
    comma = b"" if before.endswith(b"{") else b","
    return b"".join((document[:end], comma, text, document[end:]))


def rebuild(parts: Mapping[str, bytes | Raw]) -> bytes:
    """A JSON object of these members, each value's bytes as given."""
    text = b",".join(msgspec.json.encode(name) + b":" + bytes(value) for name, value in parts.items())
    return b"{" + text + b"}"


class Found:
    """What an answer's document says, apart from what is cut: the few members that a dialect acts on."""

    __slots__ = ("choices", "empty", "error", "usage")

    def __init__(self, top: Any) -> None:
        self.choices: Sequence[Any] = top.choices or ()
        """Each with ``index``, ``finish_reason`` and the raw ``delta``."""
        self.empty = bool(self.choices) and all(bytes(choice.delta) == b"{}" for choice in self.choices)
        """Every delta is empty."""
        self.usage: bytes = bytes(top.usage)
        self.error: bytes = bytes(top.error)


class Cutter:
    """Cuts the same members from every document of one answer."""

    def __init__(self, cuts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """``cuts``: each member's name and the value that stands in its place; None takes the member out."""
        self._cuts = tuple(cuts)
        self._decoder = _decoder(tuple(key.decode() for key, _ in self._cuts))

    def cut(self, document: bytes) -> tuple[bytes, Found]:
        """The document without them. Raises one of ``UNREADABLE`` if it is no answer."""
        if len(document) >= _FOLD_FROM:
            folded = document
            for key, _ in self._cuts:
                folded = _fold(folded, key)
            if folded is not document:
                top = self._decoder.decode(folded)
                if all(_occurrences(folded, key) == len(_values(top, key)) for key, _ in self._cuts):
                    return self._edit(folded, top), Found(top)
        top = self._decoder.decode(document)
        return self._edit(document, top), Found(top)

    def _edit(self, document: bytes, top: Any) -> bytes:
        spans: list[tuple[int, int, bytes | None]] = []
        for key, instead in self._cuts:
            values = _values(top, key)
            if instead is None or any(value != instead for value in values):
                found = _search(document, key, values) or _offsets(document, top, key)
                spans += [(start, end, instead) for start, end in found]
        # From the end backwards, so that each removal sees its neighbours as they now are.
        for start, end, instead in sorted(spans, key=lambda span: span[0], reverse=True):
            document = _remove(document, start, end) if instead is None else document[:start] + instead + document[end:]
        return document


@lru_cache(maxsize=64)
def _decoder(keys: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    raw: list[tuple[str, Any, Any]] = [(key, Raw, Raw()) for key in keys]
    choice = msgspec.defstruct(
        "Choice", [("index", Any, None), ("finish_reason", Any, None), ("delta", Raw, Raw()), *raw]
    )
    top = msgspec.defstruct(
        "Top",
        [("choices", list[choice] | None, None), ("usage", Raw, Raw()), ("error", Raw, Raw()), *raw],  # type: ignore[valid-type]
    )
    return msgspec.json.Decoder(top)


def _raws(top: Any, key: bytes) -> list[Raw]:
    name = key.decode()
    found = [getattr(choice, name) for choice in top.choices or ()]
    found.append(getattr(top, name))
    return [raw for raw in found if memoryview(raw).nbytes]


def _values(top: Any, key: bytes) -> list[bytes]:
    return [bytes(raw) for raw in _raws(top, key)]


def _occurrences(document: bytes, key: bytes) -> int:
    """How often the key's bytes stand in it; -1 if one is inside a string that ends there."""
    needle = b'"' + key + b'"'
    return -1 if b"\\" + needle in document else document.count(needle)


def _fold(document: bytes, key: bytes) -> bytes:
    """The document with the key's one array of numbers, if that is what it is, replaced by null."""
    needle = b'"' + key + b'":['
    at = document.find(needle)
    if at < 0 or document.find(needle, at + 1) >= 0:
        return document
    start = at + len(needle)
    end = document.find(b"]", start)
    if end < 0 or document.find(b'"', start, end) >= 0 or document.find(b"[", start, end) >= 0:
        return document
    return document[: start - 1] + b"null" + document[end + 1 :]


def _search(document: bytes, key: bytes, values: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """Each value's span by byte search; None where that proves nothing."""
    needle = b'"' + key + b'"'
    spans: list[tuple[int, int]] = []
    at = 0
    for value in values:
        at = document.find(needle, at)
        if at < 0 or document[at - 1] == _BACKSLASH:
            return None
        start = _skip(document, at + len(needle))
        if document[start : start + 1] != b":":
            return None
        start = _skip(document, start + 1)
        end = start + len(value)
        if document[start:end] != value:
            return None
        spans.append((start, end))
        at = end
    return spans if document.find(needle, at) < 0 else None


def _offsets(document: bytes, top: Any, key: bytes) -> list[tuple[int, int]]:
    """Each value's span from the parser: its raw values are views into the document."""
    base = _address(document)
    return [(at := _address(raw) - base, at + memoryview(raw).nbytes) for raw in _raws(top, key)]


def _address(view: bytes | Raw) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _skip(document: bytes, at: int) -> int:
    while document[at : at + 1] and document[at] in _BLANK:
        at += 1
    return at


def _remove(document: bytes, start: int, end: int) -> bytes:
    """The document without the member whose value is ``start:end``, and without one comma."""
    at = document.rindex(b'"', 0, document.rindex(b":", 0, start))
    at -= 1
    while document[at] != _QUOTE or document[at - 1] == _BACKSLASH:
        at -= 1
    before = len(document[:at].rstrip(_BLANK))
    if document[before - 1 : before] == b",":
        return document[: before - 1] + document[end:]
    after = _skip(document, end)
    if document[after : after + 1] == b",":
        after += 1
    return document[:at] + document[after:]
