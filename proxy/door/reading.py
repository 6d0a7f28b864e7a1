"""Bytes in, requests out: each from its head's end on, its body as it comes, one after another. Pure.

Owns where a request ends. The one non-obvious fact: it stops there, and what came behind waits until ``next``, so that
what is served next is always what was read next.
"""

from __future__ import annotations

import logging

from forge.proxy.body_buffer import BUFFERED_FROM, BodyBuffer
from forge.proxy.door.chunks import Chunks
from forge.proxy.door.head import HeadReader, Heads, Malformed
from forge.proxy.door.request import Request

log = logging.getLogger(__name__)


class Reading:
    """Of one connection. ``request`` is the one whose head was read last, until ``next``."""

    def __init__(self, body_bytes: int, heads: Heads) -> None:
        """``heads``: known to all connections."""
        self._body_bytes = body_bytes
        self._head = HeadReader(heads)
        self._chunks: Chunks | None = None
        self._missing = 0
        """Bytes of a body whose length is known."""
        self.buffer: BodyBuffer | None = None
        """Where the rest of a long one is received."""
        self.in_head = False
        """A head has begun."""
        self.request: Request | None = None

    @property
    def ended(self) -> bool:
        """The request was read to its end, or to where that cannot be told any more."""
        return self.request is not None and (self.request.complete or self.request.broken)

    def feed(self, data: bytes) -> int:
        """Reads up to the request's end; gives how many bytes that were. Raises ``Malformed`` on what is no head; what
        is no body spoils its request."""
        if self.request is not None:
            return self._body(self.request, data, 0)
        self.in_head = True
        request, used = self._head.feed(data)
        if request is None:
            return used
        self.in_head, self.request = False, request
        request.limit = self._body_bytes
        end = used + request.length
        if used < end <= len(data) and request.length <= self._body_bytes and self._head.was_known:
            request.come(data[used:end])
            return end
        if request.head.chunked:
            self._chunks = Chunks()
            self._head.renew()
        elif request.length:
            self._missing = request.length
        else:
            request.finish()
            return used
        return self._body(request, data, used) if used < len(data) else used

    def came(self, count: int) -> None:
        """So many bytes have been received in ``buffer``."""
        request, buffer = self.request, self.buffer
        assert request is not None
        assert buffer is not None
        self._missing -= count
        try:
            self._head.skip(buffer.came(count))
        except Malformed as error:
            self._spoil(request, error)
            return
        request.size += count
        if request.size > request.limit:
            self.buffer = None  # nobody wants it any more
            if not self._missing:
                request.finish()
        elif not self._missing:
            self.buffer = None
            request.come(buffer.take())

    def next(self) -> None:
        self.request = None

    def close(self) -> None:
        """Nothing more comes: parsers hold on to who they call, and are let go."""
        self._head.renew()
        self._chunks = self.buffer = None

    def _body(self, request: Request, data: bytes, at: int) -> int:
        try:
            return self._chunk(request, data, at) if self._chunks is not None else self._piece(request, data, at)
        except Malformed as error:
            self._spoil(request, error)
            return len(data)

    def _spoil(self, request: Request, error: Malformed) -> None:
        log.warning("not HTTP, answered with 400: a body: %s", error)
        self.buffer = None
        request.spoil()

    def _chunk(self, request: Request, data: bytes, at: int) -> int:
        assert self._chunks is not None
        pieces, used = self._chunks.feed(data[at:])
        for piece in pieces:
            request.feed(piece)
        if self._chunks.complete:
            self._chunks = None
            request.finish()
        return at + used

    def _piece(self, request: Request, data: bytes, at: int) -> int:
        end = min(len(data), at + self._missing)
        self._missing -= end - at
        # What will be joined with more is copied then.
        piece = memoryview(data)[at:] if self._missing else data[at:end]
        self._head.skip(piece)
        if self._missing >= BUFFERED_FROM and not request.size and request.length <= request.limit:
            self.buffer = BodyBuffer(request.length, piece)
            request.size = len(piece)
            return end
        request.feed(piece)
        if not self._missing:
            request.finish()
        return end
