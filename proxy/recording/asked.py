"""What was asked: the members of a request's body, and its messages as text.

Owns one shortcut and its proof. Nearly all of a request stood in an earlier one of its session. Where a body begins
with the very bytes that an earlier one had up to the end of its last message, a parser comes out of them in the same
state, between two messages; so one stands in for all of these, and only what follows is parsed. What is not so
is parsed whole. Makes it faster, never different.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Raw

from forge.proxy import splice
from forge.storage.media_list import media_of, shows_media

RECENT: Final = 4
"""Bodies that a new one is compared with: a session's agents take turns."""
WORTH: Final = 4096
"""Messages of fewer bytes are parsed whole."""
_MESSAGES: Final = "messages"
_STAND_IN: Final = b"0"
_NONE: Final = "[]"
_BRACKET: Final = ord("[")
_BLANK: Final = b" \t\r\n"


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
    end: int
    """Where the array ends."""


class _Known(NamedTuple):
    begun: bytes
    """A body's beginning: to the end of its last message, and maybe more."""
    first: int
    last: int
    """Where the last message ends."""
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
        known = next((one for one in reversed(self._recent) if _goes_on(body, one)), None)
        try:
            found = (_after(body, known) if known is not None else None) or _whole(body)
        except splice.UNREADABLE:
            return Asked({}, _NONE)
        if known is not None:
            self._recent.remove(known)
        if found.end - found.first >= WORTH and body[found.first - 1] == _BRACKET:
            last = found.end - 1
            while body[last - 1] in _BLANK:
                last -= 1
            known = _Known(body, found.first, last, plain=found.asked.media is None)
            self._recent = [*self._recent[1 - RECENT :], known]
        return found.asked


def _goes_on(body: bytes, known: _Known) -> bool:
    return body.startswith(memoryview(known.begun)[: known.last])


def _whole(body: bytes) -> _Read:
    members = dict(splice.members(body))
    value = members.pop(_MESSAGES, None)
    if value is None or bytes(value) == b"null":
        return _Read(Asked(members, _NONE), 0, 0)
    start = splice.place_of(value, body)
    messages = str(memoryview(value), "utf-8", "replace")
    return _Read(Asked(members, messages, media_of(messages)), start + 1, start + memoryview(value).nbytes)


def _after(body: bytes, known: _Known) -> _Read | None:
    """None where the stand-in is not found where it was put."""
    view = memoryview(body)
    short = b"".join((view[: known.first], _STAND_IN, view[known.last :]))
    try:
        members = dict(splice.members(short))
    except splice.UNREADABLE:
        return None
    value = members.pop(_MESSAGES, None)
    if value is None or splice.place_of(value, short) != known.first - 1:
        return None
    end = known.last + memoryview(value).nbytes - 1 - len(_STAND_IN)
    messages = str(view[known.first - 1 : end], "utf-8", "replace")
    seen = known.last - known.first if messages.isascii() else 0  # of others a byte is no character
    plain = known.plain and not shows_media(messages, seen)
    asked = Asked(members, messages, None if plain else media_of(messages))
    return _Read(asked, known.first, end)
