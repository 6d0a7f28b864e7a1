"""Events of a stream that differ from the one before in a few values alone: cut as that one was, without a parser.

Owns what such events have in common. The one non-obvious fact: where the text between the values is the same and each
value is one, the whole document is parsed as the last one was. For JSON is read from its beginning on without a choice:
the same text leads to the same place, a value to where the next one did. So a place that was found by chance, inside a
string or a nested value, leaves something that is no value, and the event is read as if there were no template.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

from forge.proxy.splice import UNREADABLE

_value: Final = msgspec.json.Decoder(Raw)
_BLANKS: Final = b" \t"


class Template:
    """Of events that are one line of data each."""

    __slots__ = ("_between", "_first", "_instead", "_last")

    def __init__(self, event: bytes, values: Sequence[tuple[int, int, bytes | None]]) -> None:
        """``values``: where they stand in ``event``, in order, and what stands in each one's place in what is given;
        None: the value itself."""
        ends = [end for _, end, _ in values]
        starts = [start for start, _, _ in values[1:]]
        self._first = event[: values[0][0]]
        self._between = [event[end:start] for end, start in zip(ends, starts, strict=False)]
        self._last = event[ends[-1] :]
        self._instead = [instead for _, _, instead in values]

    def fill(self, event: bytes) -> bytes | None:
        """The event, cut; None where it has more that is new."""
        if not event.startswith(self._first) or not event.endswith(self._last):
            return None
        if event.find(b"\n") != len(event) - 2 or b"\r" in event:
            return None  # more than one event, or one of several lines
        at, last = len(self._first), len(event) - len(self._last)
        out = [self._first]
        for instead, between in zip(self._instead, (*self._between, None), strict=True):
            stop = event.find(between, at, last) if between is not None else last
            value = event[at:stop]
            if stop < at or value[:1] in _BLANKS or value[-1] in _BLANKS:
                return None
            try:
                _value.decode(value)
            except UNREADABLE:
                return None
            out.append(value if instead is None else instead)
            out.append(self._last if between is None else between)
            at = stop + len(between or b"")
        return b"".join(out)
