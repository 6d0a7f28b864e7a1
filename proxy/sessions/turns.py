"""A history's turns as raw JSON values, each known again by its bytes.

Owns the splitting of a history and its marks. A session sends all its turns again with every call, and what was found
out about one the first time holds as long as its bytes do. The one non-obvious fact: the mark is the interpreter's
keyed 64-bit hash, so it is good within this process only and nobody outside can make two turns that share one.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from forge.proxy.splice import UNREADABLE, Body, members

REMEMBERED: Final = 1 << 16
"""Turns of which something is remembered."""
_items: Final = msgspec.json.Decoder(list[Raw])
V = TypeVar("V")

Mark = tuple[int, int]
"""Hash and length of a turn's bytes."""


class Turns(NamedTuple):
    """A history."""

    raws: list[Raw]
    marks: list[Mark]


NO_TURNS: Final = Turns([], [])


class Said(NamedTuple):
    """Where a request keeps its history, and its turns."""

    name: str | None
    turns: Turns


HISTORIES: Final = ("messages", "input", "contents", "prompt")
"""Where a wire format keeps its history."""


def said(body: bytes) -> Said:
    """Raises one of ``UNREADABLE`` on what is no JSON object. Of a ``Body`` it is found out once."""
    known = getattr(body, "_said", None)
    if isinstance(known, Said):
        return known
    asked = members(body)
    name = next((name for name in HISTORIES if bytes(memoryview(asked.get(name, b"null"))[:1]) != b"n"), None)
    found = Said(name, split(asked[name]) if name is not None else NO_TURNS)
    if isinstance(body, Body):
        body._said = found
    return found


def split(history: bytes | Raw | None) -> Turns:
    """The turns of a JSON array; none where it is no array."""
    try:
        raws = [] if history is None else _items.decode(history)
    except UNREADABLE:
        return NO_TURNS
    return Turns(raws, [mark_of(raw) for raw in raws])


def mark_of(value: bytes | Raw) -> Mark:
    text = bytes(value)
    return hash(text), len(text)


class Remembered(dict[Mark, V]):
    """What was found out about turns; when it is full it starts anew."""

    def keep(self, mark: Mark, found: V) -> V:
        if len(self) >= REMEMBERED:
            self.clear()
        self[mark] = found
        return found
