"""What was asked: the members of a request's body, and its messages as text.

Owns one shortcut and its proof. Nearly all of a request stood in an earlier one of its session. Where a body begins
with the very bytes that an earlier one had up to the end of one of its last messages, a parser comes out of them in the
same state, between two messages; so one stands in for all of these, and only what follows is parsed. What is not so
is parsed whole. Makes it faster, never different.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.storage.media_list import media_of, shows_media
from forge.storage.messages import REPLACED

RECENT: Final = 4
"""Bodies that a new one is compared with: a session's agents take turns."""
WORTH: Final = 4096
"""Messages of fewer bytes are parsed whole."""
_MESSAGES: Final = "messages"
_STAND_IN: Final = b"0"
_NONE: Final = "[]"
_CLOSING: Final = b'}"]'
_raw_list: Final = msgspec.json.Decoder(list[Raw])


class Asked(NamedTuple):
    members: Mapping[str, Raw]
    """All but the messages."""
    messages: str
    """JSON array; ``[]`` where there are none."""
    media: str | None = None
    """As ``media_list.media_of`` the messages."""


class _Read(NamedTuple):
    asked: Asked
    first: int
    """Where in the body the first message begins."""
    ends: tuple[int, ...]
    """Where its last messages end, the very last first."""


class _Known(NamedTuple):
    begun: bytes
    """A body's beginning: to the end of its last message, and maybe more."""
    first: int
    ends: tuple[int, ...]
    plain: bool
    """It shows no media."""


class Requests:
    """One session's. ``size`` is about the bytes that it holds."""

    def __init__(self) -> None:
        self._recent: list[_Known] = []
        """The latest last."""

    @property
    def size(self) -> int:
        return sum(len(known.begun) for known in self._recent)

    def read(self, body: bytes) -> Asked:
        """Total: of a body that is no JSON object nothing is known."""
        known, at = next(((one, at) for one in reversed(self._recent) if (at := _shared(body, one))), (None, 0))
        try:
            found = (_after(body, known, at) if known is not None else None) or _whole(body)
        except splice.UNREADABLE:
            return Asked({}, _NONE)
        if known is not None:
            self._recent.remove(known)
        if found.ends and found.ends[0] - found.first >= WORTH:
            known = _Known(body, found.first, found.ends, plain=found.asked.media is None)
            self._recent = [*self._recent[1 - RECENT :], known]
        return found.asked


def _shared(body: bytes, known: _Known) -> int:
    """Where the last message ends up to which the body is the same; 0 if none is."""
    begun = memoryview(known.begun)
    return next((end for end in known.ends if body.startswith(begun[:end])), 0)


def _whole(body: bytes) -> _Read:
    members = dict(splice.members(body))
    value = members.pop(_MESSAGES, None)
    if value is None or bytes(value) == b"null":
        return _Read(Asked(members, _NONE), 0, ())
    start = splice.place_of(value, body)
    messages = str(memoryview(value), "utf-8", "replace")
    return _Read(Asked(members, messages, media_of(messages)), start + 1, _ends(value, start, body))


def _ends(array: Raw, start: int, body: bytes, *, skip: int = 0) -> tuple[int, ...]:
    """Where the last messages of ``array`` end that say themselves where they do, as a number does not. The array
    stands in the body at ``start``; its first ``skip`` messages do not count."""
    try:
        raws = _raw_list.decode(array)[skip:]
    except splice.UNREADABLE:
        return ()
    places = [splice.place_of(raw, array) + memoryview(raw).nbytes + start for raw in raws[-1 - REPLACED :]]
    return tuple(end for end in reversed(places) if body[end - 1] in _CLOSING)


def _after(body: bytes, known: _Known, at: int) -> _Read | None:
    """``at``: up to there the body is the known one. None where the stand-in is not found where it was put."""
    view = memoryview(body)
    short = b"".join((view[: known.first], _STAND_IN, view[at:]))
    try:
        members = dict(splice.members(short))
    except splice.UNREADABLE:
        return None
    value = members.pop(_MESSAGES, None)
    if value is None or splice.place_of(value, short) != known.first - 1:
        return None
    taken = at - known.first - len(_STAND_IN)
    messages = str(view[known.first - 1 : known.first - 1 + memoryview(value).nbytes + taken], "utf-8", "replace")
    seen = at - known.first if messages.isascii() else 0  # of others a byte is no character
    plain = known.plain and not shows_media(messages, seen)
    asked = Asked(members, messages, None if plain else media_of(messages))
    before = [end for end in known.ends if end <= at]
    ends = (*_ends(value, known.first - 1 + taken, body, skip=1), *before)
    return _Read(asked, known.first, ends[: 1 + REPLACED])
