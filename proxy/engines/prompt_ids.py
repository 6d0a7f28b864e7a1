"""The ids of a prompt, read from their text: what an earlier prompt of the session said is compared, not parsed.

Owns one shortcut and its proof. The array of prompt ids is most of an answer, and nearly all of it stood in the answer
before; so it is cut out by byte search, and only what is new is parsed. Inside a JSON string a quote is always escaped:
where the quoted name stands once in the rest and no backslash before it, it is a key, and the parser says whether that
key is the member we mean by finding the mark that was put in its place. Whatever is not so is parsed whole.
"""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

import msgspec
import numpy as np

MARK: Final = -7
"""Stands for the array: no engine has a token of this id."""
FOLD_FROM: Final = 4096
"""Documents shorter than this are parsed whole."""
RECENT: Final = 4
"""Prompts that a new one is compared with: a session's agents take turns."""
_NAMES: Final = ("prompt_token_ids", "input_ids")
_BLANK: Final = b" \t\r\n"
_COMMA: Final = ord(",")
_NO_IDS: Final = memoryview(array("i"))
_ids: Final = msgspec.json.Decoder(list[int])


class Folded(NamedTuple):
    name: str
    """The key."""
    document: bytes
    """With ``[MARK]`` in the place of the array."""
    text: bytes
    """What stood between its brackets; whether these are ids shows when it is read."""


def fold(document: bytes) -> Folded | None:
    """None where nothing can be cut out for sure."""
    if len(document) < FOLD_FROM:
        return None
    for name in _NAMES:
        needle = b'"' + name.encode() + b'"'
        at = document.find(needle)
        start = _array_at(document, at + len(needle)) if at >= 0 else -1
        if start < 0:
            continue
        end = document.find(b"]", start)
        if end < 0:
            continue
        if document[at - 1 : at] != b"\\" and document.find(needle, end) < 0:
            view = memoryview(document)
            return Folded(name, b"".join((view[:start], b"%d" % MARK, view[end:])), document[start:end])
    return None


def _array_at(document: bytes, at: int) -> int:
    """Where the elements begin of the array that is a key's value; -1 if it is none. ``at``: the key's end."""
    head = document[at : at + 8].lstrip(_BLANK)
    rest = head[1:].lstrip(_BLANK)
    if head[:1] != b":" or rest[:1] != b"[":
        return -1
    return document.index(b"[", at) + 1


class _Row:
    """Ids one behind the other, of which the prompts that grew from each other are beginnings: what is new is written
    behind them, where room was left for it."""

    def __init__(self, ids: memoryview, room: int) -> None:
        self._held = np.empty(len(ids) + room, np.int32)
        self._held[: len(ids)] = ids
        self.used = len(ids)

    def add(self, new: list[int]) -> bool:
        """False where there is no room."""
        end = self.used + len(new)
        if end > len(self._held):
            return False
        self._held[self.used : end] = array("i", new)
        self.used = end
        return True

    @property
    def ids(self) -> memoryview:
        """All that were added so far."""
        return self._held[: self.used].data.toreadonly()


class _Known(NamedTuple):
    text: bytes
    ids: memoryview
    row: _Row


class PromptIds:
    """One session's prompts. ``size`` is about the bytes that it holds."""

    def __init__(self) -> None:
        self._recent: list[_Known] = []
        """The latest last."""

    @property
    def size(self) -> int:
        return sum(len(known.text) + known.ids.nbytes for known in self._recent)

    def read(self, text: bytes) -> memoryview:
        """The ids of an array's text, as int32. Raises ``msgspec.DecodeError``, or ``OverflowError`` on an id beyond 32
        bits."""
        known, count, end = self._nearest(text)
        begun = known.ids[:count] if known is not None else _NO_IDS
        new: list[int] = []
        if known is None or end < len(text):
            new = _ids.decode(b"[" + text[end + 1 if known is not None else 0 :] + b"]")
            if known is not None and not new:
                raise msgspec.DecodeError("nothing stands after the last comma")
        row = known.row if known is not None and count == known.row.used else _Row(begun, len(new))
        if not row.add(new):
            row = _Row(begun, count + len(new))
            row.add(new)
        ids = row.ids
        if known is not None and end >= len(known.text) // 2:
            self._recent.remove(known)
        self._recent = [*self._recent[1 - RECENT :], _Known(text, ids, row)]
        return ids

    def _nearest(self, text: bytes) -> tuple[_Known | None, int, int]:
        """The prompt that has most ids in common, how many, and where in the text the comma after them stands."""
        best: tuple[_Known | None, int, int] = (None, 0, 0)
        for known in reversed(self._recent):
            count, end = _common(known, text)
            if count > best[1]:
                best = (known, count, end)
            if count == len(known.ids):
                break
        return best


def _common(known: _Known, text: bytes) -> tuple[int, int]:
    if text.startswith(known.text):
        end = len(known.text)
        if end == len(text) or text[end] == _COMMA:
            return len(known.ids), end
    size = min(len(known.text), len(text))
    ours, theirs = np.frombuffer(known.text, np.uint8, size), np.frombuffer(text, np.uint8, size)
    differs = ours != theirs
    first = int(differs.argmax()) if size else 0
    if size and not differs[first]:
        first = size
    # The number at which they part may have begun alike: back to the comma before it.
    end = text.rfind(b",", 0, first)
    return (int(np.count_nonzero(ours[: end + 1] == _COMMA)), end) if end > 0 else (0, 0)
