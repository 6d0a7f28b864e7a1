"""Our reading of requests against two parsers that others stand behind: nothing they refuse is served, and what is
served was read alike.

Requests are put together from the parts that smuggling is made of, spoiled byte by byte, and cut anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.faults.soak import examples, figures
from tests.proxy.serving import serving
from tests.security.parsers import Read, aiohttps, h11s, ours
from tests.security.test_framing import HIDDEN, cases
from tests.security.wire import CHAT, CHUNKED, CHUNKS, CLOSE, LENGTH, WAIT_S, port_of, request, said, statuses

LINES = (
    b"POST /v1/chat/completions HTTP/1.1",
    b"GET /v1/models?a=b HTTP/1.1",
    b"POST http://other/v1/chat/completions?x#y HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"POST / HTTP/1.0",
    b"GET //a//b HTTP/1.1",
)
HEADS = (
    LENGTH,
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length:\t5 ",
    b"content-length: +5",
    CHUNKED,
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"transfer-encoding:chunked",
    b"TE: trailers",
    b"Trailer: X",
    b"Connection: close",
    b"Connection: keep-alive, Transfer-Encoding",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"X-Empty:",
    b"X:  a b\t",
    b"X: \xc3\xa9\xff",
    b"X-Long: " + b"a" * 300,
    b"Accept: a",
    b"Accept: b",
    b"User-Agent: u",
)
BODIES = (
    b"",
    b"abcde",
    CHAT,
    CHUNKS,
    b"5\r\nabcde\r\n0\r\n\r\n",
    b"2;a=b\r\nab\r\n3\r\n\r\n\r\n\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"000005\r\nabcde\r\n0000\r\n\r\n",
)
SPOILS = (
    b"\r",
    b"\n",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\x0b",
    b"\xff",
    b"0",
    b"\r\n",
    b"\r\n\r\n",
    b"\n\n",
    b";",
    b",",
    b"-",
    b"\x80",
)


def _put(line: bytes, heads: list[bytes], body: bytes) -> bytes:
    return request(*heads, line=line, body=body)


REQUESTS = st.builds(
    _put, st.sampled_from(LINES), st.lists(st.sampled_from(HEADS), max_size=4), st.sampled_from(BODIES)
)
GOOD = st.sampled_from([request(LENGTH), request(CHUNKED, body=CHUNKS), HIDDEN])
SPOILED = st.tuples(st.integers(0, 2), st.integers(0, 1 << 16), st.sampled_from(SPOILS))
"""What is done (put in, put in place of a byte, taken out), where, with what."""


PLAIN = st.lists(REQUESTS | GOOD, min_size=1, max_size=3).map(b"".join)
CUTS = st.lists(st.integers(0, 1 << 16), max_size=4)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    raw = draw(PLAIN)
    for what, where, with_ in draw(st.lists(SPOILED, max_size=2)):
        at = where % (len(raw) + 1)
        raw = raw[:at] + (with_ if what < 2 else b"") + raw[at + (what > 0) :]
    return raw


def pieces(raw: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return (raw[a:b] for a, b in pairwise(places) if a < b)


def single(raw: bytes) -> Iterator[bytes]:
    """Byte by byte: what was read before the fault is not lost with it."""
    return (raw[at : at + 1] for at in range(len(raw)))


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def no_more_than(theirs: Read, mine: Read, raw: bytes) -> None:
    """What we served, they would have served, and read the same in it."""
    assert theirs.ended or len(mine.whole) <= len(theirs.whole), raw
    for my, their in zip(mine.whole, theirs.whole, strict=False):
        assert (my[0], my[1], my[3]) == (their[0], their[1], their[3]), raw
        # aiohttp takes the trailers of one request for headers of the next.
        assert set(my[2]) <= set(their[2]), raw


@settings(max_examples=250)
@given(spoiled(), CUTS)
@example(b"\r\n\r\n\r\n" + request(LENGTH), [1, 3, 5])
@example(request(LENGTH) + b"\n" + request(LENGTH), [])
def test_what_another_parser_refuses_is_not_served(raw: bytes, cuts: list[int]) -> None:
    mine = ours(pieces(raw, cuts))
    no_more_than(aiohttps(single(raw)), mine, raw)
    no_more_than(h11s(single(raw)), mine, raw)


@settings(max_examples=80)
@given(PLAIN, CUTS)
def test_what_is_put_together_rightly_is_taken_as_it_is_by_aiohttp(raw: bytes, cuts: list[int]) -> None:
    """Strict is not stubborn."""
    mine, theirs = ours(pieces(raw, cuts)), aiohttps(single(raw))
    assert (mine.refused, mine.ended) == (theirs.refused, theirs.ended)
    assert len(mine.whole) == len(theirs.whole)


@figures(30, 500, 20_000)
async def test_whatever_comes_on_a_socket_the_next_one_is_served(tmp_path: Path, number: int) -> None:
    """A refusal or an end, never an error of ours."""
    async with serving(tmp_path) as s:
        loop, port = asyncio.get_running_loop(), port_of(s.proxy.base_url)

        def send(raw: bytes) -> None:
            for sent, ends in ((raw, True), (request(LENGTH, CLOSE), False)):
                job = asyncio.run_coroutine_threadsafe(said(port, sent, ends=ends), loop)
                answer = job.result(2 * WAIT_S)
                assert b"internal_error" not in answer, sent
            assert statuses(answer) == [200]

        await asyncio.to_thread(examples, number, spoiled(), send)


def test_where_the_bytes_are_cut_changes_nothing() -> None:
    """Every one of the known cases, whole, byte by byte, and cut once at each place about its empty lines."""
    for raw in cases():
        if len(raw) > 5000:
            continue
        whole = ours([raw])
        assert ours(single(raw)) == whole, raw
        at = raw.find(b"\r\n\r\n")
        for cut in range(max(at - 2, 0), at + 8):
            assert ours(pieces(raw, [cut])) == whole, raw
