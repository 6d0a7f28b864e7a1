"""A body of known length, received where it stays: the kernel writes into the very bytes that are handed on.

Shared by both sides of the proxy. The one non-obvious fact: the bytes of a ``BytesIO`` can be written through its
buffer, and once that is released they are given away as they are, without a copy.
"""

from __future__ import annotations

import asyncio
from io import BytesIO
from typing import Final, Protocol

BUFFERED_FROM: Final = 64 << 10
"""Bytes still to come from which on a buffer of their own pays."""


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


class Receiver(Protocol):
    """A connection's own protocol."""

    @property
    def buffer(self) -> BodyBuffer | None: ...

    def came(self, count: int) -> None:
        """So many bytes have been received in ``buffer``."""

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def eof_received(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...


class Buffered(asyncio.BufferedProtocol):
    """A connection's protocol for as long as a long body comes on it; everything else is its receiver's. Small reads
    cost more this way, so none else is made so."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def get_buffer(self, sizehint: int) -> memoryview:
        assert self._receiver.buffer is not None
        return self._receiver.buffer.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.came(nbytes)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    def eof_received(self) -> None:
        self._receiver.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._receiver.connection_lost(exc)
