"""The messages of a session's prompts, each taken apart once however many prompts repeat it.

Owns where one message of a JSON array ends and the next begins; knows nothing of what they say. The one non-obvious
fact: a message that was parsed once is a whole JSON value, so where its very bytes stand again at the same place,
followed by a comma or the array's end, the parser would find the same message.
"""

from __future__ import annotations

import hashlib
import re
from collections import deque
from collections.abc import Sequence
from itertools import islice
from sys import getsizeof
from typing import Final, NamedTuple

import msgspec

RECENT: Final = 12
"""Prompts whose messages a new one is compared with: a session's agents take turns."""
REPLACED: Final = 4
"""Messages at the end that a prompt may put others in place of, and still be the same one that goes on: harnesses move
notes of their own there."""
_SEPARATOR: Final = re.compile(r"[ \t\r\n]*,[ \t\r\n]*")
_START: Final = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*")
_raw_list: Final = msgspec.json.Decoder(list[msgspec.Raw])


class Piece:
    """One message. The same message of several prompts is the same object, so it is hashed once."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        """Its JSON as it was sent."""
        self.digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Piece) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def piece_of(response: str | None) -> Piece | None:
    return Piece(response) if response else None


def _pieces(array: str) -> list[Piece]:
    return [Piece(str(memoryview(raw), "utf-8")) for raw in _raw_list.decode(array)]


class _Prompt(NamedTuple):
    text: str
    """From its bracket to the end of its last message."""
    pieces: list[Piece]


class Messages:
    """Takes the prompts of one session apart, in any order. Memory grows with the new messages of each, and holds the
    text of the last few whole: most prompts begin with one of them, which one comparison tells."""

    def __init__(self) -> None:
        self._recent: deque[_Prompt] = deque(maxlen=RECENT)

    @property
    def size(self) -> int:
        """Bytes of the texts that are held."""
        return sum(getsizeof(prompt.text) for prompt in self._recent)

    def read(self, text: str) -> list[Piece]:
        """The messages of a JSON array; [] where it is none that we can take apart (half a surrogate pair, no array
        at all): such a text is kept as it is, whole."""
        try:
            pieces = self._known(text) or _pieces(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return []
        if pieces:
            self._remember(text, pieces)
        return pieces

    def _known(self, text: str) -> list[Piece]:
        """Those of the recent prompt that it repeats furthest, and what is new; [] where nothing is repeated."""
        start = _START.match(text)
        if start is None:
            return []
        best: list[Piece] = []
        count, end = 0, 0
        for known in reversed(self._recent):
            if text.startswith(known.text):
                same, at = len(known.pieces), len(known.text)
            else:
                same, at = _repeated(text, known.pieces, start.end())
            if same > count:
                best, count, end = known.pieces, same, at
            if count == len(known.pieces):
                break
        if not count:
            return []
        rest = text[end:]
        if comma := _SEPARATOR.match(rest):
            new = _pieces("[" + rest[comma.end() :])
            return best[:count] + new if new else []
        # Nothing new: what follows must be the end of the array and of the text.
        return best[:count] if not _raw_list.decode("[" + rest) else []

    def _remember(self, text: str, pieces: list[Piece]) -> None:
        """In the place of the prompt that it goes on from, if there is one."""
        for index, known in enumerate(self._recent):
            same = common(known.pieces, pieces)
            if len(known.pieces) - same <= min(REPLACED, same):
                del self._recent[index]
                break
        self._recent.append(_Prompt(text.rstrip()[:-1].rstrip(), pieces))


def _repeated(text: str, pieces: Sequence[Piece], at: int) -> tuple[int, int]:
    """How many of ``pieces`` stand in the text from ``at`` on, and where the last of them ends."""
    count, end = 0, at
    for piece in pieces:
        if not text.startswith(piece.text, at):
            break
        after = at + len(piece.text)
        following = text[after : after + 2]
        if following[:1] == "," and following[1:].strip():
            at = after + 1
        elif separator := _SEPARATOR.match(text, after):
            at = separator.end()
        elif following.lstrip()[:1] in ("", "]"):
            return count + 1, after
        else:
            break  # a number that goes on
        count, end = count + 1, after
    return count, end


def joined(pieces: Sequence[Piece], start: int = 0) -> str:
    """A JSON array of the messages from ``start`` on."""
    return "[" + ",".join(piece.text for piece in islice(pieces, start, None)) + "]"


def common(a: list[Piece], b: list[Piece]) -> int:
    """How many messages both begin with."""
    same, most = 0, min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    while same < most:  # lists of the same objects are compared far faster than one by one
        middle = (same + most + 1) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same
