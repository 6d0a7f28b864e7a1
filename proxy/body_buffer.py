"""A body of known length, received where it stays: the kernel writes into the very bytes that are handed on.

Shared by both sides of the proxy. The one non-obvious fact: the bytes of a ``BytesIO`` can be written through its
buffer, and once that is released they are given away as they are, without a copy.
"""

from __future__ import annotations

import threading
from io import BytesIO
from typing import Final

BUFFERED_FROM: Final = 64 << 10
"""Bytes still to come from which on a buffer of their own pays."""
SCRATCH_BYTES: Final = 32 << 10


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.view = memoryview(bytearray(SCRATCH_BYTES))


_scratch: Final = _Scratch()


def scratch() -> memoryview:
    """Where a thread's event loop receives everything else, to be copied at once: it reads one connection at a time."""
    return _scratch.view


class BodyBuffer:
    """Of ``size`` bytes, of which ``begun`` are there already."""

    __slots__ = ("_at", "_file", "_size", "_view")

    def __init__(self, size: int, begun: bytes | memoryview) -> None:
        self._file = BytesIO(bytes(size))
        self._view = self._file.getbuffer()
        self._size = size
        self._at = len(begun)
        self._view[: self._at] = begun

    @property
    def left(self) -> int:
        return self._size - self._at

    def room(self) -> memoryview:
        """For the bytes that come next; to be let go before ``take``."""
        return self._view[self._at :]

    def came(self, count: int) -> memoryview:
        """So many are there now; gives them."""
        self._at += count
        return self._view[self._at - count : self._at]

    def take(self) -> bytes:
        """What has come; the buffer is of no use any more."""
        self._view.release()
        whole = self._file.getvalue()
        return whole if self._at == self._size else whole[: self._at]
