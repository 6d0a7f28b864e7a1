"""Identifiers of calls and sessions: time-ordered, unique, ``[a-z0-9]`` only.

48 bits of milliseconds and 80 random bits in base 32. ``call_id`` is ``c`` plus 26 characters, so that every id a
dialect mints from it stays within 40.
"""

from __future__ import annotations

import secrets
import time
from typing import Final

ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = [first + second for first in ALPHABET for second in ALPHABET]
_RANDOM_BITS: Final = 80
_RANDOM_BYTES: Final = _RANDOM_BITS // 8
_AT_ONCE: Final = 256
_CHARS: Final = 26


def base32(value: int, chars: int) -> str:
    """The lowest ``5 * chars`` bits of ``value``, most significant first."""
    pairs = [_PAIRS[value >> 10 * place & 1023] for place in range((chars + 1) // 2 - 1, -1, -1)]
    return "".join(pairs)[-chars:]


class IdSource:
    """Gives ids in increasing order, also within one millisecond and when the wall clock steps back."""

    def __init__(self) -> None:
        self._last = 0
        self._random = b""
        self._at = 0

    def next(self) -> str:
        fresh = (time.time_ns() // 1_000_000) << _RANDOM_BITS | self._bits()
        self._last = max(fresh, self._last + 1)
        return base32(self._last, _CHARS)

    def _bits(self) -> int:
        """The kernel is asked for many at once: each time costs more than all else here."""
        if self._at >= len(self._random):
            self._random, self._at = secrets.token_bytes(_RANDOM_BYTES * _AT_ONCE), 0
        self._at += _RANDOM_BYTES
        return int.from_bytes(self._random[self._at - _RANDOM_BYTES : self._at], "big")

    def call_id(self) -> str:
        return "c" + self.next()
