"""Edits of JSON documents as bytes: everything that is not edited stays as it came, to the byte.

Owns two edits: members added to or replaced in a request's top level, and members cut from an answer (its top level
and its ``choices``). It knows no member by name. The one non-obvious fact: inside a JSON string a quote is always
escaped, so the bytes ``"name"`` with no backslash before them are that very name, as a key or as a whole string. If
they occur as often as the parser found the member where it belongs, a byte search has found the member itself;
whenever the counts differ, the parser's own offsets are taken instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What the parser raises on bytes that are no such document, however broken or deep."""
_BLANK: Final = b" \t\r\n"
_BLANKS: Final = (b" ", b"\t", b"\r", b"\n")
_ABSENT: Final = Raw()
_BACKSLASH: Final = ord("\\")
_QUOTE: Final = ord('"')
_FOLD_FROM: Final = 4096
"""Documents shorter than this are parsed whole; in longer ones the id arrays are folded away first."""
_NOTHING: Final = re.compile(rb'\{(?:"\w+":null,?)*\}')
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


class FoundChoice(msgspec.Struct):
    index: Any = None
    finish_reason: Any = None
    delta: Raw = Raw()


class Found(msgspec.Struct):
    """What an answer's document says, apart from what is cut: the few members that a dialect acts on."""

    choices: Sequence[FoundChoice] | None = None
    usage: Any = None
    error: Any = None

    @property
    def empty(self) -> bool:
        """It has no usage, and every delta there is holds nothing or nulls."""
        said = self.choices is not None and self.usage is None and self.error is None
        return said and all(_NOTHING.fullmatch(choice.delta) for choice in self.choices or ())


class _Plan(NamedTuple):
    """One member to cut, worked out once for all documents of an answer."""

    name: str
    needle: bytes
    instead: bytes | None


class Cutter:
    """Cuts the same members from every document of one answer."""

    def __init__(self, cuts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """``cuts``: each member's name and the value that stands in its place; None takes the member out."""
        self._plans = [_Plan(key.decode(), b'"' + key + b'"', instead) for key, instead in cuts]
        self._decoder = _decoder(tuple(plan.name for plan in self._plans))

    def cut(self, document: bytes) -> tuple[bytes, Found]:
        """The document without them. Raises one of ``UNREADABLE`` if it is no answer."""
        if len(document) >= _FOLD_FROM:
            folded = document
            for plan in self._plans:
                folded = _fold(folded, plan.needle)
            if folded is not document:
                found = self._decoder.decode(folded)
                # Each name stands only where the parser found the member: so what was folded was the member.
                if all(_occurrences(folded, plan.needle) == len(_raws(found, plan.name)) for plan in self._plans):
                    return self._edit(folded, found), found
        found = self._decoder.decode(document)
        return self._edit(document, found), found

    def _edit(self, document: bytes, found: Found) -> bytes:
        spans: list[tuple[int, int, bytes | None]] = []
        for name, needle, instead in self._plans:
            values = [bytes(raw) for raw in _raws(found, name)]
            if values and (instead is None or values.count(instead) < len(values)):
                where = _search(document, needle, values) or _offsets(document, found, name)
                spans += [(start, end, instead) for start, end in where]
        # From the end backwards, so that each removal sees its neighbours as they now are.
        spans.sort(reverse=True, key=_start)
        for start, end, instead in spans:
            document = _remove(document, start, end) if instead is None else document[:start] + instead + document[end:]
        return document


_start: Final = itemgetter(0)


@lru_cache(maxsize=64)
def _decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Found]:
    """Of documents whose raw values of these names are kept beside what is found."""
    raw: list[tuple[str, Any, Any]] = [(name, Raw, _ABSENT) for name in names]
    choice = msgspec.defstruct("Choice", raw, bases=(FoundChoice,))
    found = msgspec.defstruct("Document", [("choices", list[choice] | None, None), *raw], bases=(Found,))  # type: ignore[valid-type]
    return msgspec.json.Decoder(found)


def _raws(found: Found, name: str) -> list[Raw]:
    """The member's values, those of the choices first."""
    raws = [getattr(choice, name) for choice in found.choices or ()]
    raws.append(getattr(found, name))
    return [raw for raw in raws if raw is not _ABSENT]


def _occurrences(document: bytes, needle: bytes) -> int:
    """How often the quoted name stands in it; -1 if one is inside a string that ends there."""
    return -1 if b"\\" + needle in document else document.count(needle)


def _fold(document: bytes, needle: bytes) -> bytes:
    """The document with the name's first array of numbers, if that is what it is, replaced by null."""
    needle += b":["
    at = document.find(needle)
    if at < 0:
        return document
    start = at + len(needle)
    end = document.find(b"]", start)
    if end < 0 or document.find(b'"', start, end) >= 0 or document.find(b"[", start, end) >= 0:
        return document
    return document[: start - 1] + b"null" + document[end + 1 :]


def _search(document: bytes, needle: bytes, values: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """Each value's span by byte search; None where that proves nothing."""
    spans: list[tuple[int, int]] = []
    at = 0
    for value in values:
        at = document.find(needle, at)
        if at < 0 or document[at - 1] == _BACKSLASH:
            return None
        start = _skip(document, at + len(needle))
        if not document.startswith(b":", start):
            return None
        start = _skip(document, start + 1)
        if not document.startswith(value, start):
            return None
        end = start + len(value)
        spans.append((start, end))
        at = end
    return spans if document.find(needle, at) < 0 else None


def _offsets(document: bytes, found: Found, name: str) -> list[tuple[int, int]]:
    """Each value's span from the parser: its raw values are views into the document."""
    base = _address(document)
    return [(at := _address(raw) - base, at + memoryview(raw).nbytes) for raw in _raws(found, name)]


def _address(view: bytes | Raw) -> int:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address


def _skip(document: bytes, at: int) -> int:
    while document.startswith(_BLANKS, at):
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
