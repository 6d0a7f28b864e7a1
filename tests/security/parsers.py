"""Three readers of the same bytes - ours, aiohttp's and h11's - in one shape, for tests that compare them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import NonCallableMock

import pytest
from aiohttp import http_exceptions
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParser

from forge.proxy.door.head import FIELD_BYTES, Heads, Malformed
from forge.proxy.door.reading import Reading
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import split_target
from forge.proxy.door.strict import check_head

BODY_BYTES = 1 << 20
Message = tuple[str, str, tuple[tuple[str, str], ...], bytes]
"""Method, path with query, headers (names in lower case, sorted), body."""


@dataclass
class Read:
    whole: list[Message] = field(default_factory=list)
    """What was read to its end, in order."""
    refused: bool = False
    """What follows is no request, or no body."""
    ended: bool = False
    """The last one asked for the connection to end with it."""


KNOWN = Heads()
"""Of all that was ever read here."""


def ours(pieces: Iterable[bytes]) -> Read:
    """It may not matter which heads were read before."""
    pieces = list(pieces)
    read = _ours(pieces, Heads())
    for _ in range(2):
        assert _ours(pieces, KNOWN) == read
    return read


def _ours(pieces: Iterable[bytes], heads: Heads) -> Read:
    """As a connection does it: a request is dealt with before the next one is read."""
    read, reading = Read(), Reading(BODY_BYTES, heads)
    for piece in pieces:
        rest = piece
        while rest:
            try:
                rest = rest[reading.feed(rest) :]
                if reading.request is not None:
                    check_head(reading.request)
            except (Malformed, Refused):
                read.refused = True
                return read
            if reading.request is None or not reading.ended:
                continue
            request = reading.request
            if request.broken:
                read.refused = True
                return read
            query = request.head.query_string
            target = request.path + (f"?{query}" if query else "")
            read.whole.append((request.method, target, _sorted(_fields(request.headers)), request.take()))
            if not request.head.keep_alive:
                read.ended = True
                return read
            reading.next()
    return read


def _fields(headers: Any) -> Iterable[tuple[str, str]]:
    return ((name, value) for name in headers for value in headers.getall(name))


def aiohttps(pieces: Iterable[bytes]) -> Read:
    """Of a server that is set as ours was: nothing decompressed, the same longest lines, the same refusals on top."""
    loop = NonCallableMock(spec=asyncio.AbstractEventLoop)
    parser = HttpRequestParser(
        BaseProtocol(loop), loop, 1 << 20, max_line_size=FIELD_BYTES, max_field_size=FIELD_BYTES, auto_decompress=False
    )
    found: list[Any] = []
    read = Read()
    for piece in pieces:
        try:
            messages, _, _ = parser.feed_data(piece)
        except http_exceptions.HttpProcessingError:
            read.refused = True
            messages = ()
        found += messages
        if read.refused:
            break
    for message, payload in found:
        try:
            check_head(message)
        except Refused:
            read.refused = True
            return read
        if not payload.is_eof():
            return read
        if payload.exception() is not None:
            read.refused = True
            return read
        url = message.url
        target = url.raw_path + (f"?{url.raw_query_string}" if url.raw_query_string else "")
        names = ((name.lower(), value) for name, value in message.headers.items())
        read.whole.append((message.method, target, _sorted(names), payload.read_nowait() or b""))
        if message.should_close:
            read.refused, read.ended = False, True
            return read
    return read


def h11s(pieces: Iterable[bytes]) -> Read:
    h11 = pytest.importorskip("h11")
    connection, read = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20), Read()
    request: Any = None
    body = b""
    for piece in _without_empty_lines(pieces, connection, h11):
        connection.receive_data(piece)
        while True:
            try:
                event = connection.next_event()
            except h11.RemoteProtocolError:
                read.refused = True
                return read
            if event is h11.NEED_DATA or event is h11.PAUSED:
                break
            if type(event) is h11.Request:
                request, body = event, b""
                if event.method == b"CONNECT":
                    read.refused = True
                    return read
            elif type(event) is h11.Data:
                body += bytes(event.data)
            elif type(event) is h11.EndOfMessage:
                names = ((name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in request.headers)
                method, target = request.method.decode(), request.target.decode("utf-8", "surrogateescape")
                with suppress(ValueError):  # it has no opinion on targets
                    path, query = split_target(method, target)
                    target = path + (f"?{query}" if query else "")
                read.whole.append((method, target, _sorted(names), body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    read.ended = True
                    return read
                connection.start_next_cycle()
    return read


def _without_empty_lines(pieces: Iterable[bytes], connection: Any, h11: Any) -> Iterator[bytes]:
    """Single bytes, less whole empty lines before a request: it takes none, though it should (RFC 9112, 2.2)."""
    kept = b""
    for piece in pieces:
        between = connection.their_state is h11.IDLE and not connection.trailing_data[0]
        if kept + piece == b"\r\n":
            kept = b""
        elif between and piece == b"\r":
            kept = piece
        else:
            yield kept + piece
            kept = b""


def _sorted(fields: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Less the length, which the body shows."""
    return tuple(sorted(field for field in fields if field[0] != "content-length"))
