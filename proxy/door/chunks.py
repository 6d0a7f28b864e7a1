"""A request's body in chunks, taken apart by llhttp.

Owns the limit of what a body may say beside itself (sizes, extensions, trailers, which nobody reads). The parser is one
of its own, shown a head of ours first, so that it begins with the body whatever the real head offered.
"""

from __future__ import annotations

from typing import Final

import httptools

from forge.proxy.door.head import END, Malformed, slice_end

HEAD: Final = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
BESIDE_BYTES: Final = 64 << 10
BESIDE_TIMES: Final = 8
"""A chunk of one byte comes with five more."""


class Chunks:
    """Of one body."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._body_bytes = 0
        self._tail = b""
        self.complete = False
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._parser.feed_data(HEAD)

    def feed(self, data: bytes) -> tuple[list[bytes], int]:
        """The pieces of the body in ``data``, and where in it the body ends, or its length. Raises ``Malformed``."""
        assert self._parser is not None
        at = 0
        while at < len(data) and not self.complete:
            end = slice_end(self._tail, data, at)
            piece = data[at:end]
            self._read(piece)
            at = end
            if self.complete and not (self._tail + piece).endswith(END):
                raise Malformed("the last chunk does not end in an empty line")
            self._tail = (self._tail + piece)[-3:]
        if self.complete:
            self._parser = None
        pieces, self._pieces = self._pieces, []
        return pieces, at

    def _read(self, piece: bytes) -> None:
        assert self._parser is not None
        self._bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserError as error:
            told = error.__context__ if isinstance(error.__context__, Malformed) else type(error).__name__
            raise Malformed(str(told)) from None
        if self._bytes - self._body_bytes > BESIDE_BYTES + BESIDE_TIMES * self._body_bytes:
            raise Malformed("there is more beside the body than in it")

    # Called by the parser

    def on_message_begin(self) -> None:
        if self.complete:
            raise Malformed("it goes on behind its last chunk")

    def on_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        self.complete = True
