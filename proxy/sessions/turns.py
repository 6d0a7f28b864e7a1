"""A request's body as the turns of its history and what stands around them, each read once.

Owns where a history begins and ends, and which of its turns were there in the request before. A session sends all its
turns again with every call: those are told by comparing bytes, and what was found out about one the first time holds as
long as its bytes do. The one non-obvious fact: where the bytes before a history and those behind it are the same as
last time, they leave a parser in the same state, so only the turns that are new need one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.splice import UNREADABLE, members, place_of
from forge.storage.media_text import MARK, MEDIA_SIGNS

HISTORIES: Final = ("messages", "input", "contents", "prompt")
"""Where a wire format keeps its history."""
DEVELOPER: Final = b'"developer"'
IMAGE: Final = b'"image_url"'
OLD_KEY: Final = b'"reasoning_content"'
SIGNS: Final = {sign: 1 << bit for bit, sign in enumerate((DEVELOPER, IMAGE, OLD_KEY, MARK, *MEDIA_SIGNS))}
"""What somebody looks for in a turn, and its bit in what was found."""
_items: Final = msgspec.json.Decoder(list[Raw])
_EMPTY: Final = Raw(b"[]")
_NULL: Final = Raw(b"null")
_BLANK: Final = b" \t\r\n"
_OPENING: Final = b'{["'

Told = tuple[str, bytes]
"""A turn's role and its digest."""


class Turn:
    """One turn, and what those who looked at it found. It stands behind the same turns wherever it is."""

    __slots__ = ("number", "said", "signs", "text", "told")

    def __init__(self, text: bytes) -> None:
        self.text = text
        """A JSON value."""
        self.signs: int | None = None
        """Bits of ``SIGNS``, with those of the turns before it."""
        self.said: tuple[str | None, str] | None = None
        """Its role and its text, or the text's head and end."""
        self.told: Told | None = None
        """None for one that says nothing, and as long as nobody has read it."""
        self.number = -1
        """How many turns up to this one say something; -1 as long as nobody has read it."""


class Around:
    """What stands around a history, and what was found out about it: the same for all requests with these bytes."""

    __slots__ = ("apart", "head", "hints", "media", "name", "plans", "sender", "small", "tail")

    def __init__(self, small: Mapping[str, Raw], name: str | None, head: bytes = b"", tail: bytes = b"") -> None:
        self.small = small
        """The members; a list of turns is empty here, where it is known again."""
        self.name = name
        """The member that holds the history."""
        self.head = head
        """The body up to the first turn."""
        self.tail = tail
        """The body from behind the last turn on."""
        self.media: bool | None = None
        self.apart: Any = None
        self.hints: dict[str, Any] | None = None
        self.plans: list[Any] = []
        self.sender: Any = None


class Known:
    """A history as it was last sent."""

    __slots__ = ("around", "chain", "chained", "gap", "start", "turns")

    def __init__(self) -> None:
        self.around: Around | None = None
        self.gap = b","
        """Between two turns."""
        self.turns: list[Turn] = []
        self.start = b""
        self.chain: list[bytes] = []
        """The fingerprints of its prefixes, from ``start`` on."""
        self.chained = 0
        """Turns that are in them."""

    def walk(self, body: bytes, at: int) -> tuple[int, int, bool]:
        """How many of its turns stand in ``body`` from ``at`` on, where they end, and whether another must follow."""
        gap, known = self.gap, 0
        for turn in self.turns:
            if not body.startswith(turn.text, at):
                return known, at, known > 0
            at += len(turn.text)
            known += 1
            if not body.startswith(gap, at):
                return known, at, False
            at += len(gap)
        return known, at, known > 0

    def keep(self, known: int, new: list[bytes]) -> None:
        """Only the first ``known`` turns are still there, and behind them these."""
        if self.chained > known:
            self.chained = known
            del self.chain[self.turns[known - 1].number if known else 0 :]
        self.turns[known:] = [Turn(text) for text in new]

    def fork(self) -> Known:
        """Another one, so far the same."""
        other = Known()
        other.around, other.gap, other.turns = self.around, self.gap, self.turns.copy()
        other.start, other.chain, other.chained = self.start, self.chain.copy(), self.chained
        return other


class Asked:
    """One request's body, read."""

    def __init__(self, body: bytes, around: Around) -> None:
        self.body = body
        self.around = around
        self.start = self.end = 0
        """Where its value stands."""
        self.turns: Sequence[Turn] = ()
        """Of a history that is a list."""
        self.known = Known()
        self._members: dict[str, Raw] | None = None

    @property
    def members(self) -> dict[str, Raw]:
        """All of the top level."""
        if self._members is None:
            self._members = members(self.body)
        return self._members

    @property
    def signs(self) -> int:
        """Bits of what stands in the turns."""
        turns = self.turns
        at = len(turns)
        while at and turns[at - 1].signs is None:
            at -= 1
        found = (turns[at - 1].signs or 0) if at else 0
        for turn in turns[at:]:
            for sign, bit in SIGNS.items():
                if sign in turn.text:
                    found |= bit
            turn.signs = found
        return found


Request = bytes | Asked


def asked_of(request: Request) -> Asked:
    """Raises one of ``UNREADABLE``."""
    return request if isinstance(request, Asked) else read(request, Known())


def split(history: bytes) -> list[Turn]:
    """The turns of a JSON array; none where it is no array."""
    return [Turn(text) for text in _texts(history)]


def again(body: bytes, known: Known, found: tuple[int, int, bool]) -> Asked | None:
    """The body, where it is the last one's with other turns; None where it is not. ``found``: by ``walk``."""
    around, (count, at, more) = known.around, found
    if around is None or not count or not body.endswith(around.tail):
        return None
    stop = len(body) - len(around.tail)
    texts = _texts(b"[" + body[at:stop] + b"]") if more else []
    if bool(texts) is not more or (at != stop and not more) or not _delimited(texts):
        return None
    known.keep(count, texts)
    asked = Asked(body, around)
    asked.start, asked.end = around.head.rindex(b"["), stop + around.tail.index(b"]") + 1
    asked.turns, asked.known = known.turns.copy(), known
    return asked


def read(body: bytes, known: Known) -> Asked:
    """The body, whatever it holds; ``known`` is that of this history from now on. Raises one of ``UNREADABLE`` where
    it is no JSON object."""
    found = members(body)
    name = next((name for name in HISTORIES if bytes(memoryview(found.get(name, _NULL))[:1]) != b"n"), None)
    asked = Asked(body, Around(found, name))
    asked._members = found
    if name is None:
        return asked
    asked.start = place_of(found[name], body)
    asked.end = asked.start + memoryview(found[name]).nbytes
    texts = _texts(found[name])
    if texts and _delimited(texts):
        _learn(asked, name, known, texts)
    else:
        asked.turns = [Turn(text) for text in texts]
    return asked


def _learn(asked: Asked, name: str, known: Known, texts: list[bytes]) -> None:
    body = asked.body
    first = body.index(texts[0], asked.start)
    count = known.walk(body, first)[0]
    if len(texts) > 1:
        second = first + len(texts[0])
        known.gap = body[second : body.index(texts[1], second)]
    known.keep(count, texts[count:])
    last = asked.end - 1
    while body[last - 1] in _BLANK:
        last -= 1
    small = {member: Raw(bytes(value)) for member, value in asked.members.items() if member != name}
    known.around = Around(small | {name: _EMPTY}, name, body[:first], body[last:])
    asked.around, asked.known, asked.turns = known.around, known, known.turns.copy()


def _texts(history: bytes | Raw) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _items.decode(history)]
    except UNREADABLE:
        return []


def _delimited(texts: list[bytes]) -> bool:
    """Each says itself where it ends, as a number does not."""
    return all(text[0] in _OPENING for text in texts)
