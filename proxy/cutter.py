"""Members cut from an engine's answer (its top level and its ``choices``) as bytes, all else as it came, to the byte.

It knows no member by name. The one non-obvious fact: inside a JSON string a quote is always escaped, so the bytes
``"name"`` with no backslash before them are that very name, as a key or as a whole string. If they occur as often as
the parser found the member where it belongs, a byte search has found the member itself; whenever the counts differ, the
parser's own offsets are taken instead.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from forge.proxy.splice import UNREADABLE, members, place_of

_BLANK: Final = b" \t\r\n"
_BLANKS: Final = (b" ", b"\t", b"\r", b"\n")
_ABSENT: Final = Raw()
_BACKSLASH: Final = ord("\\")
_COLON: Final = ord(":")
_QUOTE: Final = ord('"')
_FOLD_FROM: Final = 4096
"""Documents shorter than this are parsed whole; in longer ones the id arrays are folded away first."""
_STAND_INS: Final = tuple(b"%d" % (10**18 + secrets.randbelow(8 * 10**18)) for _ in range(8))
"""What folded arrays are to the parser: numbers that nobody else can know."""
_OTHERS: Final = 3
"""Other arrays behind the ids of an answer; where there are more, they are not looked for."""
_NOTHING: Final = re.compile(rb'\{(?:"\w+":null,?)*\}')


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
        if self.choices is None or self.usage is not None or self.error is not None:
            return False
        return all(_says_nothing(bytes(choice.delta)) for choice in self.choices)


def _says_nothing(delta: bytes) -> bool:
    return b'":"' not in delta and _NOTHING.fullmatch(delta) is not None


class _Plan(NamedTuple):
    """One member to cut, worked out once for all documents of an answer."""

    name: str
    needle: bytes
    instead: bytes | None


_Span = tuple[int, int, bytes | None]
"""Start and end of a value in a document, and what stands in its place; None takes the member out."""


class Cutter:
    """Cuts the same members from every document of one answer."""

    def __init__(self, cuts: Iterable[tuple[bytes, bytes | None]]) -> None:
        """``cuts``: each member's name and the value that stands in its place; None takes the member out."""
        self._plans = [_Plan(key.decode(), b'"' + key + b'"', instead) for key, instead in cuts]
        self._removes = any(plan.instead is None for plan in self._plans)
        self._decoder = _decoder(tuple(plan.name for plan in self._plans))
        self._keys = tuple(plan.needle + colon for plan in self._plans for colon in (b":", b": "))

    def cut(self, document: bytes) -> tuple[bytes, Found]:
        """The document without them. Raises one of ``UNREADABLE`` if it is no answer."""
        folds = self._folds(document) if len(document) >= _FOLD_FROM else []
        if folds:
            folded = _folded(document, folds)
            try:
                found = self._decoder.decode(folded)
            except UNREADABLE:
                pass  # an array that was none
            else:
                spans = self._searched(folded, found)
                if spans is not None and len([1 for at, to, _ in spans if folded[at:to] in _STAND_INS]) == len(folds):
                    return self._edit(folded, spans), found
        found = self._decoder.decode(document)
        spans = self._searched(document, found)
        return self._edit(document, self._told(document, found) if spans is None else spans), found

    def _folds(self, document: bytes) -> list[tuple[int, int]]:
        """Where the arrays of these names may lie, the last ones first: to the first bracket that closes. Inside a
        string or a nested array that is too soon, but what is left then has a quote or a bracket too many, and no
        parser takes it."""
        folds: list[tuple[int, int]] = []
        start, others = len(document), 0
        while len(folds) < len(_STAND_INS) and others < _OTHERS:
            start = document.rfind(b"[", 0, start)
            if start < 0:
                break
            if document.endswith(self._keys, 0, start):
                folds.append((start, document.find(b"]", start) + 1 or len(document)))
            else:
                others += 1
        return folds

    def _searched(self, document: bytes, found: Found) -> list[_Span] | None:
        """Where the values are, by byte search; None where that proves nothing: each name must stand as often as the
        parser found the member, and each time with the member's value. What stands in for an array is nowhere else."""
        spans: list[_Span] = []
        choices = found.choices
        for name, needle, instead in self._plans:
            raw = getattr(found, name)
            if choices is not None and len(choices) == 1 and raw is _ABSENT:
                raw = getattr(choices[0], name)
                if raw is _ABSENT:
                    continue
                values = [bytes(raw)]
            else:
                values = [bytes(raw) for raw in _raws(found, name)]
            if not values or values.count(instead) == len(values):  # type: ignore[arg-type]
                continue
            if len(values) == 1 and values[0] in _STAND_INS:
                start = document.rindex(values[0])
                spans.append((start, start + len(values[0]), instead))
                continue
            at = 0
            for value in values:
                at = document.find(needle, at)
                start = at + len(needle) + 1
                if at <= 0 or document[at - 1] == _BACKSLASH or document[start - 1] != _COLON:
                    return None
                if not document.startswith(value, start):
                    return None
                at = start + len(value)
                if value != instead:
                    spans.append((start, at, instead))
            if document.find(needle, at) >= 0:
                return None
        return spans

    def places(self, document: bytes, found: Found) -> list[_Span] | None:
        """Of a document of one choice that said a text, and nothing that seldom comes: where its text and the values
        that are cut stand, in order; None where it is another, or members are taken out. ``found``: what ``cut`` found
        in this very object."""
        choices = found.choices
        if self._removes or not choices or len(choices) > 1 or len(document) >= _FOLD_FROM:
            return None
        if found.usage is not None or found.error is not None or choices[0].finish_reason is not None:
            return None
        try:
            delta = members(choices[0].delta)
        except UNREADABLE:
            return None
        texts = [value for value in delta.values() if bytes(value).startswith(b'"')]
        if len(texts) != 1:
            return None
        start = place_of(choices[0].delta, document) + place_of(texts[0], choices[0].delta)
        spans = [*self._told(document, found), (start, start + memoryview(texts[0]).nbytes, None)]
        return sorted(spans, key=_start)

    def _told(self, document: bytes, found: Found) -> list[_Span]:
        """Where the values are, by the parser: its raw values are views into the document."""
        spans: list[_Span] = []
        for name, _, instead in self._plans:
            for raw in _raws(found, name):
                size = memoryview(raw).nbytes
                if size != len(instead or b"") or bytes(raw) != instead:
                    start = place_of(raw, document)
                    spans.append((start, start + size, instead))
        return spans

    def _edit(self, document: bytes, spans: list[_Span]) -> bytes:
        if not spans:
            return document
        if self._removes:
            return _removed(document, spans)
        if len(spans) > 1:
            spans.sort()
        pieces: list[bytes] = []
        at = 0
        for start, end, instead in spans:
            pieces += (document[at:start], instead or b"")
            at = end
        pieces.append(document[at:])
        return b"".join(pieces)


@lru_cache(maxsize=64)
def _decoder(names: tuple[str, ...]) -> msgspec.json.Decoder[Found]:
    """Of documents whose raw values of these names are kept beside what is found."""
    raw: list[tuple[str, Any, Any]] = [(name, Raw, _ABSENT) for name in names]
    choice = msgspec.defstruct("Choice", raw, bases=(FoundChoice,))
    found = msgspec.defstruct("Document", [("choices", list[choice] | None, None), *raw], bases=(Found,))  # type: ignore[valid-type]
    return msgspec.json.Decoder(found)


def _raws(found: Found, name: str) -> list[Raw]:
    """The member's values, those of the choices first."""
    raws = [raw for choice in found.choices or () if (raw := getattr(choice, name)) is not _ABSENT]
    if (raw := getattr(found, name)) is not _ABSENT:
        raws.append(raw)
    return raws


def _folded(document: bytes, folds: list[tuple[int, int]]) -> bytes:
    """The document with each of these places, the last one first, taken by a number that stands for it."""
    pieces: list[bytes] = []
    end = len(document)
    for (start, stop), stand_in in zip(folds, _STAND_INS, strict=False):
        pieces += (document[stop:end], stand_in)
        end = start
    pieces.append(document[:end])
    pieces.reverse()
    return b"".join(pieces)


def _removed(document: bytes, spans: list[_Span]) -> bytes:
    """From the end backwards, so that each removal sees its neighbours as they now are."""
    for start, end, instead in sorted(spans, key=_start, reverse=True):
        document = _remove(document, start, end) if instead is None else document[:start] + instead + document[end:]
    return document


_start: Final = itemgetter(0)


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
