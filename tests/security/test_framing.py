"""Requests that two HTTP parsers may read differently (smuggling): refused, and the connection ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from forge.storage.frames import Open
from tests.proxy.serving import serving
from tests.security.wire import CHAT, CHUNKED, CHUNKS, CLOSE, LENGTH, port_of, request, said, statuses

HIDDEN = request(b"X-Hidden: yes", LENGTH)
"""What an attacker wants to be read as a request of its own."""


def lengths() -> Iterator[bytes]:
    size = len(CHAT)
    for value in ("+%d", "-%d", " 0x%x", "%d ,%d", "%d, %d", "%d_0", "%d.0", "%de0", "\t\x0b%d", "%d\x00", "'%d'"):
        yield request(b"Content-Length: " + (value % ((size,) * value.count("%"))).encode())
    for value in ("", "9" * 30, "٤٥", "Infinity"):
        yield request(b"Content-Length: " + value.encode())
    for one, two in itertools.permutations([b"%d" % size, b"0", b"1", b"%d" % (size + 1)], 2):
        yield request(b"Content-Length: " + one, b"Content-Length: " + two)
    yield request(LENGTH, LENGTH)
    for space in (b" ", b"\t", b"\x0b", b"\x0c", b"\xa0"):
        yield request(b"Content-Length" + space + b": %d" % size)
        yield request(space + LENGTH)


def codings() -> Iterator[bytes]:
    yield request(LENGTH, CHUNKED, body=CHUNKS)
    yield request(CHUNKED, LENGTH, body=CHUNKS)
    yield request(CHUNKED, b"Content-Length: 0", body=CHUNKS + HIDDEN)
    yield request(CHUNKED, CHUNKED, body=CHUNKS)
    yield request(CHUNKED, line=b"POST /v1/chat/completions HTTP/1.0", body=CHUNKS)
    yield request(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)
    names = ("xchunked", "identity", "gzip", "gzip, chunked", "chunked, gzip", "chunked, identity", "chunked, chunked")
    for name in (*names, '"chunked"', "\x0bchunked", "chunked\x00", "chunked;q=1", "x", "chunke", ",chunked", "\x7f"):
        yield request(b"Transfer-Encoding: " + name.encode(), body=CHUNKS)
        yield request(b"Transfer-Encoding: " + name.encode(), LENGTH)
    for name in (b"Transfer-Encoding ", b"Transfer\x00Encoding", b" Transfer-Encoding", b"\tTransfer-Encoding"):
        yield request(name + b": chunked", LENGTH, body=CHAT + HIDDEN)


def chunks() -> Iterator[bytes]:
    size = b"%x" % len(CHAT)
    for first in (b"0x" + size, b"+" + size, b"-1", size + b" ", b" " + size, b"", b"f" * 17, size + b"\x00", b"g"):
        yield request(CHUNKED, body=first + b"\r\n" + CHAT + b"\r\n0\r\n\r\n")
    for extension in (b";a\nb", b";a\rb", b";\x00", b";a=\x0b"):
        yield request(CHUNKED, body=size + extension + b"\r\n" + CHAT + b"\r\n0\r\n\r\n")
    for end in (b"", b"\n", b"XX", b"\r", b"\n\r", b"\r\n\r\n"):
        yield request(CHUNKED, body=size + b"\r\n" + CHAT + end + b"0\r\n\r\n" + HIDDEN)
    yield request(CHUNKED, body=size + b"\n" + CHAT + b"\n0\n\n")
    for end in (b"00\r\n\n", b"0\r\n\n", b"0\n\r\n", b"0\r\nContent-Length: 5\r\n\r\n", b"0;\n\r\n\r\n"):
        yield request(CHUNKED, body=size + b"\r\n" + CHAT + b"\r\n" + end + HIDDEN)


def heads() -> Iterator[bytes]:
    for head in (b"NoColon", b": v", b"X\x00: v", b"X: a\x00b", b"X: a\rb", b"X: a\r\n b", b"X\tY: v", b"X Y: v"):
        yield request(LENGTH, head)
        yield request(head, LENGTH)
    for byte in (*range(1, 9), 11, 12, *range(14, 32), 127):
        yield request(LENGTH, b"X" + bytes([byte]) + b": v")
        if byte != 127:  # obsolete text, which parsers agree on
            yield request(LENGTH, b"X: a" + bytes([byte]) + b"b")
    for byte in b'(),/:;<=>?@[\\]{}"':
        yield request(LENGTH, b"X" + bytes([byte]) + b"Y: v" if byte != 58 else b"X :Y: v")
    yield request(LENGTH, b"X: " + b"a" * 70_000)
    yield request(LENGTH, *[b"X-%d: 1" % n for n in range(20_000)])
    yield request(LENGTH).replace(b"\r\n", b"\n")
    yield request(LENGTH, host=b"")
    yield request(LENGTH, b"Host: other")


def lines() -> Iterator[bytes]:
    path = b"/v1/chat/completions"
    for version in (
        b"HTTP/2.0",
        b"HTTP/1.2",
        b"HTTP/0.9",
        b"HTTP/9.9",
        b"http/1.1",
        b"HTTP/1",
        b"HTTP/1.1.1",
        b"XTTP/1.1",
    ):
        yield request(LENGTH, line=b"POST " + path + b" " + version)
    for byte in (*range(1, 9), 11, 12, *range(14, 32), 127):
        yield request(LENGTH, line=b"POST " + path + bytes([byte]) + b" HTTP/1.1")
        yield request(LENGTH, line=b"PO" + bytes([byte]) + b"ST " + path + b" HTTP/1.1")
    for line in (
        b"",
        b"POST",
        b"POST " + path,
        b"post " + path + b" HTTP/1.1",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0",
    ):
        yield request(LENGTH, line=line)
    yield request(line=b"CONNECT 169.254.169.254:80 HTTP/1.1", body=b"")
    yield request(line=b"CONNECT 127.0.0.1:80 HTTP/1.1", body=HIDDEN)
    yield b"GET /v1/models\r\n\r\n"
    yield "POST /v1/chat/complétions HTTP/1.1".encode() + b"\r\nHost: localhost\r\n\r\n"


def cases() -> list[bytes]:
    plain = [*lengths(), *codings(), *chunks(), *heads(), *lines()]
    behind = [raw.replace(b"\r\n\r\n", b"\r\n\r\n" + HIDDEN, 1) for raw in [*lengths(), *codings()]]
    before = [request(LENGTH) + raw for raw in [*lengths(), *codings(), *chunks(), *lines()]]
    return plain + behind + before


async def test_what_two_parsers_may_read_differently_is_refused(tmp_path: Path) -> None:
    """Every case: no 2xx for the odd request, none hidden behind it is served, and the next connection is well."""
    found = cases()
    assert len(found) >= 500
    async with serving(tmp_path) as s:
        port = port_of(s.proxy.base_url)
        for raw in found:
            served = len(s.engine.served)
            got = statuses(await said(port, raw))
            good = got[:1] == [200]  # the one before the odd one: it may be served, or share its fate
            assert raw.startswith(request(LENGTH)) or not good, raw[:200]
            assert len(got) == 1 + good, (raw[:200], got)
            assert 400 <= got[-1] <= 505, (raw[:200], got)
            assert got[-1] != 500, (raw[:200], got)
            assert len(s.engine.served) == served + good, raw[:200]
        assert statuses(await said(port, request(LENGTH, CLOSE))) == [200]
        assert not [o for o in s.frames(Open) if o.path != "/v1/chat/completions"]


async def test_the_control_plane_is_as_strict(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        token = b"Authorization: Bearer " + s.proxy.control_token.encode() + b"\r\n"
        for raw in [*lengths(), *codings(), *heads(), *lines()]:
            at = raw.find(b"\r\n") + 2
            raw = raw[:at].replace(b"/v1/chat/completions", b"/sessions") + token + raw[at:]
            (status,) = statuses(await said(port_of(s.proxy.control_url), raw))
            assert 400 <= status <= 505, raw[:300]
            assert status != 500, raw[:300]
        assert (await s.control.capacity())["open"] == 0


async def test_ordinary_oddities_are_served(tmp_path: Path) -> None:
    """Strict is not stubborn: what every parser reads alike is a request."""
    fine = [
        request(CHUNKED, CLOSE, body=CHUNKS),
        request(CHUNKED, CLOSE, body=CHUNKS.replace(b"\r\n", b";name=value\r\n", 1)),
        request(b"transfer-encoding: Chunked", CLOSE, body=CHUNKS),
        request(LENGTH, b"Connection: close, Content-Length"),
        request(LENGTH, CLOSE, b"X: \xff\xfe"),
        b"\r\n" + request(LENGTH, CLOSE),
        request(LENGTH, CLOSE, line=b"POST /v1/chat/completions?a=b HTTP/1.1"),
        request(LENGTH, line=b"POST /v1/chat/completions HTTP/1.0", host=b""),
        request(LENGTH) + request(LENGTH, CLOSE),
    ]
    async with serving(tmp_path) as s:
        for raw in fine:
            assert statuses(await said(port_of(s.proxy.base_url), raw)) == [200] * raw.count(b"POST "), raw[:200]


async def test_a_request_goes_to_our_own_engine_whatever_host_it_names(tmp_path: Path) -> None:
    """No open proxy: an absolute request target, a Host, a header or a member of the body moves nothing."""
    async with serving(tmp_path) as s:
        evil = b"http://169.254.169.254:80"
        body = CHAT[:-1] + b',"api_base":"%s","base_url":"%s","upstream":"%s"}' % (evil, evil, evil)
        length = b"Content-Length: %d" % len(body)
        for heads in (
            [b"X-Upstream: " + evil],
            [b"X-Forwarded-Host: evil"],
            [b"Forwarded: host=evil"],
            [b"Via: 1.1 x"],
        ):
            for line in (b"POST /v1/chat/completions HTTP/1.1", b"POST " + evil + b"/v1/chat/completions HTTP/1.1"):
                raw = request(length, CLOSE, *heads, line=line, body=body)
                assert statuses(await said(port_of(s.proxy.base_url), raw)) == [200]
        assert len(s.engine.served) == 8
        for served in s.engine.served:
            assert not {"x-upstream", "x-forwarded-host", "forwarded", "via"} & {n.lower() for n in served.headers}
        assert s.engine.admin == []
