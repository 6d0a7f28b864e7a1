"""Reads the heads of a connection's requests, one after another: llhttp says what is one, this says what else is not.

Owns the limits of a head, what may be said in it once only, and the form of its first line, of which llhttp takes more
than one. A head that was read before, but for the length that it says, is known (``Heads``). The one rule by which
requests that follow each other closely are told apart: llhttp gets no bytes behind an empty line until it was asked,
for a head ends nowhere else. It sees bodies of a known length pass; bodies in chunks are for ``chunks``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import httptools

from forge.proxy.door.request import HTTP_10, HTTP_11, Head, Headers, Request, split_target

LINE: Final = b"\r\n"
END: Final = b"\r\n\r\n"
FIELD_BYTES: Final = 32 << 10
"""Longest request target, and header field: Codex puts JSON into one."""
HEAD_BYTES: Final = 256 << 10
FIELDS: Final = 128
ONCE: Final = frozenset(
    {
        "content-length",
        "content-location",
        "content-range",
        "content-type",
        "etag",
        "host",
        "max-forwards",
        "server",
        "transfer-encoding",
        "user-agent",
    }
)
"""Headers of which one parser may take the first and another the last."""
VERSIONS: Final = {"1.1": HTTP_11, "1.0": HTTP_10}
OTHER_VERSION: Final = (0, 0)
LENGTH: Final = re.compile(rb"\r\nContent-Length: ?([0-9]{1,15})\r\n", re.IGNORECASE)
KNOWN: Final = 1024
KNOWN_BYTES: Final = 4 << 10
"""Longer heads are read anew each time."""


class Malformed(Exception):
    """No HTTP that can be read in one way only. Says why, and nothing of what came."""


class Heads:
    """Those that were read, by their bytes less the digits of the one length that they say: with other digits, the
    parser reads the same but for the length."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, bytes], Head] = {}

    def find(self, data: bytes) -> tuple[Request, int] | None:
        """The request with which ``data`` begins, and where its head ends; None where it is not known."""
        end = data.find(END) + len(END)
        if not len(END) <= end <= KNOWN_BYTES or (found := LENGTH.search(data, 0, end)) is None:
            return None
        start, stop = found.span(1)
        head = self._known.get((start, data[:start] + data[stop:end]))
        return (Request(head, int(data[start:stop])), end) if head is not None else None

    def note(self, raw: bytes, head: Head) -> None:
        """``raw``: all of it, of a head that says one length."""
        found = LENGTH.search(raw)
        if found is None or len(raw) > KNOWN_BYTES:
            return
        if len(self._known) >= KNOWN:
            self._known.clear()
        start, stop = found.span(1)
        self._known[start, raw[:start] + raw[stop:]] = head


class HeadReader:
    """Of one connection."""

    def __init__(self, known: Heads) -> None:
        self._known = known
        self.was_known = False
        """The last head was: the parser has not read it, and waits for no body."""
        self._parser: httptools.HttpRequestParser | None = None
        self._request: Request | None = None
        self._forget()

    def _forget(self) -> None:
        self._raw: list[bytes] = []
        self._tail = b""
        self._bytes = 0
        self._target = b""
        self._headers = Headers()

    def feed(self, data: bytes) -> tuple[Request | None, int]:
        """The request whose head ends in ``data``, and where; None and all of it if none does. Raises ``Malformed``."""
        if not self._raw and (known := self._known.find(data)) is not None:
            self.was_known = True
            return known
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        at, self.was_known = 0, False
        while at < len(data):
            end = slice_end(self._tail, data, at)
            piece = data[at:end]
            self._bytes += len(piece)
            if self._bytes > HEAD_BYTES:
                raise Malformed("the head is too long")
            self._raw.append(piece)
            self._read(piece)
            at = end
            if (request := self._request) is not None:
                if not (self._tail + piece).endswith(END):
                    raise Malformed("the head does not end in an empty line")
                if len(self._raw) == 1 and request.length:
                    self._known.note(self._raw[0], request.head)
                self._request = None
                self._forget()
                return request, at
            self._tail = (self._tail + piece)[-3:]
        return None, at

    def _read(self, piece: bytes | memoryview) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self.renew()  # an offer, which is not taken; the parser waits for another protocol
        except httptools.HttpParserError as error:
            told = error.__context__ if isinstance(error.__context__, Malformed) else type(error).__name__
            raise Malformed(str(told)) from None

    def skip(self, piece: bytes | memoryview) -> None:
        """Part of a body of known length."""
        if self._parser is not None and not self.was_known:
            self._read(piece)

    def renew(self) -> None:
        """What follows, a parser that has seen nothing reads; a reader that is not needed any more lets its own go."""
        self._parser = None

    # Called by the parser

    def on_message_begin(self) -> None:
        if self._request is not None:
            raise Malformed("it goes on behind the end of its head")

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > FIELD_BYTES:
            raise Malformed("the request line is too long")

    def on_header(self, raw: bytes, value: bytes) -> None:
        if len(raw) + len(value) > FIELD_BYTES:
            raise Malformed("a header is too long")
        name = _name(raw)
        if not self._headers.add(name, value.decode("utf-8", "surrogateescape").rstrip(" \t")) and name in ONCE:
            raise Malformed("a header that may come once comes again")

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        assert parser is not None
        if headers.fields() > FIELDS:
            raise Malformed("there are too many headers")
        spoken, method = parser.get_http_version(), parser.get_method()
        self._check_line(b"%b %b HTTP/%b\r\n" % (method, self._target, spoken.encode()))
        version = VERSIONS.get(spoken, OTHER_VERSION)
        if version == HTTP_11 and "host" not in headers:
            raise Malformed("it names no host")
        try:
            target = split_target(method.decode(), self._target.decode("utf-8", "surrogateescape"))
        except ValueError:
            raise Malformed("its target is none") from None
        length = headers.take("content-length")
        head = Head(method.decode(), target, version, headers, keep_alive=parser.should_keep_alive())
        self._request = Request(head, int(length or 0))

    def _check_line(self, line: bytes) -> None:
        """Between its parts one space; before it empty lines, but no half ones."""
        raw, start = b"".join(self._raw), 0
        while raw.startswith(LINE, start):
            start += len(LINE)
        if not raw.startswith(line, start):
            raise Malformed("the request line is not written as it should be")


def slice_end(tail: bytes, data: bytes, at: int) -> int:
    """Behind the next empty line of ``data``, or its end. ``tail``: the bytes before ``at``, three of them at most."""
    if tail:
        seam = (tail + data[at : at + 3]).find(END)
        if seam >= 0:
            return at + seam + len(END) - len(tail)
    found = data.find(END, at)
    return found + len(END) if found >= 0 else len(data)


@lru_cache(maxsize=1024)
def _name(raw: bytes) -> str:
    return raw.decode("latin-1").lower()
