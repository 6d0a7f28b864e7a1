"""Clients of every manner at the door: slow, hasty, deaf, mute, half gone, wordy. Real sockets, on both event loops.

What is served here are requests, not calls: the handler says what it was asked, or what a test wants of it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from forge.proxy.config import Limits
from forge.proxy.door.bodies import read_body
from forge.proxy.door.connection import NOT_HTTP, TOO_SLOW
from forge.proxy.door.doors import Doors
from forge.proxy.door.outlet import CONTINUE, JSON
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import Request
from tests.loops import Run, on_both, running_on
from tests.security.wire import statuses

WAIT_S = 10.0
LIMITS = Limits(body_bytes=1 << 20)
GET = b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabcde"
CHUNKED = (
    b"POST /%d HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n3;x=y\r\ncde\r\n0\r\nA: b\r\n\r\n"
)
LAST = b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
LARGE = b"x" * (8 << 20)


@on_both
def run(request: pytest.FixtureRequest) -> Run:
    return running_on(request.param, WAIT_S)


@dataclass
class Served:
    """A door whose handler answers with path and body; ``/stuck`` waits for ``go``, ``/large`` and ``/stream`` say
    much, ``/refuse`` looks at no body."""

    limits: Limits = LIMITS
    port: int = 0
    asked: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """The client of a stuck request, or of one that says much, is gone."""
    sent: int = 0
    doors: Doors = field(init=False)
    clients: list[asyncio.StreamWriter] = field(default_factory=list)

    async def handle(self, request: Request) -> None:
        self.asked.append(request.path)
        self.began.set()
        try:
            if request.path == "/refuse":
                return request.outlet.answer(401, b"no")
            body = await read_body(request, self.limits)
            if request.path == "/stuck":
                await self.go.wait()
            if request.path == "/stream":
                return await self._stream(request)
            said = LARGE if request.path == "/large" else request.path.encode() + b" " + body
            request.outlet.begin(200, JSON, len(said))
            await request.outlet.end([said])
        except Refused as refused:
            request.outlet.answer(refused.status, refused.code.encode())
        except BaseException:
            self.left.set()
            raise

    async def _stream(self, request: Request) -> None:
        request.outlet.begin(200, JSON, None)
        while True:
            self.sent += 1 << 10
            if request.outlet.write(b"y" * (1 << 10)):
                await request.outlet.taken()
            await asyncio.sleep(0)

    async def connect(self, *, taken: int | None = None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """``taken``: bytes that the client's system takes before its program does."""
        client = socket.socket()
        client.setblocking(False)
        if taken is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, taken)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 14)
        self.clients.append(writer)
        return reader, writer

    async def said(self, raw: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(raw)
        answer = await reader.read()
        writer.close()
        return answer


@asynccontextmanager
async def serving(limits: Limits = LIMITS) -> AsyncIterator[Served]:
    served = Served(limits)
    served.doors = Doors(served.handle, limits)
    bound = socket.create_server(("127.0.0.1", 0))
    served.port = bound.getsockname()[1]
    await served.doors.listen(bound, 100)
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        await served.doors.close()


def test_requests_behind_one_another_are_answered_in_order(run: Run) -> None:
    """Of every kind, sent at once; and sent in pieces that end anywhere."""

    async def case() -> None:
        kinds = [GET, POST, CHUNKED]
        raw = b"".join(kinds[n % 3] % n for n in range(60)) + LAST
        right = [b"/%d %s" % (n, b"abcde" if n % 3 else b"") for n in range(60)] + [b"/last "]
        async with serving() as s:
            for size in (len(raw), 1000, 71):
                reader, writer = await s.connect()
                for at in range(0, len(raw), size):
                    writer.write(raw[at : at + size])
                    await writer.drain()
                answer = await reader.read()
                bodies = [part.partition(b"HTTP/1.1")[0] for part in answer.split(b"\r\n\r\n")[1:]]
                assert bodies == right
                writer.close()

    run(case())


def test_a_second_request_waits_for_the_first(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n" + LAST)
            await s.began.wait()
            assert not (await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=0.05))[0]
            assert s.asked == ["/stuck"]
            s.go.set()
            writer.close()

    run(case())


def test_who_sends_ahead_without_end_has_to_wait(run: Run) -> None:
    """Back-pressure: what is kept of requests that are not served yet has a bound, and none is lost."""

    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n")
            await s.began.wait()
            long = b"POST /refuse HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n" + b"z" * 1_000_000
            writer.write(long * 20 + LAST)
            drained = asyncio.ensure_future(writer.drain())
            assert not (await asyncio.wait([drained], timeout=0.1))[0]
            s.go.set()
            answer = await reader.read()
            assert statuses(answer) == [200] + [401] * 20 + [200]
            writer.close()

    run(case())


def test_a_head_that_never_ends_is_cut_off_however_busy_its_sender(run: Run) -> None:
    """Slow-loris: a byte now and then does not move the limit."""

    async def case() -> None:
        async with serving(replace(LIMITS, head_s=0.2)) as s:
            reader, writer = await s.connect()
            ended = asyncio.ensure_future(reader.read())
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n")
            while not (await asyncio.wait([ended], timeout=0.01))[0]:
                writer.write(b"X: y\r\n")
            assert ended.result() == TOO_SLOW
            assert s.asked == []
            writer.close()

    run(case())


def test_many_slow_clients_hold_up_nobody(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            slow = [await s.connect() for _ in range(200)]
            for number, (_, writer) in enumerate(slow):
                writer.write((POST % 1)[: 1 + number % (len(POST) - 1)])
            assert statuses(await s.said(LAST)) == [200]
            for _, writer in slow:
                writer.close()

    run(case())


def test_a_body_that_never_ends_is_answered_with_408(run: Run) -> None:
    async def case() -> None:
        async with serving(replace(LIMITS, body_s=0.1)) as s:
            for raw in ((POST % 1)[:-1], (CHUNKED % 1)[:-2], (CHUNKED % 1)[:-12]):
                reader, writer = await s.connect()
                writer.write(raw)
                assert statuses(await reader.readuntil(b"body_timeout")) == [408]
                writer.close()

    run(case())


def test_a_connection_on_which_nothing_is_asked_ends(run: Run) -> None:
    async def case() -> None:
        async with serving(replace(LIMITS, idle_s=0.1)) as s:
            for raw in (b"", GET % 1):
                reader, writer = await s.connect()
                writer.write(raw)
                assert statuses(await reader.read()) == ([200] if raw else [])
                writer.close()

    run(case())


def test_a_client_that_says_it_has_no_more_to_say_has_left(run: Run) -> None:
    """Half closed is closed: a client that is gone looks no different."""

    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n")
            await s.began.wait()
            writer.write_eof()
            assert await reader.read() == b""
            await s.left.wait()
            writer.close()

    run(case())


def test_a_client_that_leaves_within_its_body_is_no_body(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            _, writer = await s.connect()
            writer.write(b"POST /stuck HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab")
            await s.began.wait()
            writer.close()
            await s.left.wait()

    run(case())


def test_a_client_that_takes_nothing_holds_its_sender(run: Run) -> None:
    """Back-pressure: what waits to be sent has a bound; then the client is given up."""

    async def case() -> None:
        async with serving(replace(LIMITS, write_s=0.2)) as s:
            for path in (b"/stream", b"/large"):
                s.left.clear()
                _, writer = await s.connect(taken=1 << 12)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(b"GET %b HTTP/1.1\r\nHost: h\r\n\r\n" % path)
                await s.left.wait()
                writer.close()
            assert s.sent < 32 << 20

    run(case())


def test_a_client_that_takes_slowly_gets_all(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect(taken=1 << 14)
            writer.write(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n" + LAST)
            size = 0
            while piece := await reader.read(1 << 16):
                size += len(piece)
                await asyncio.sleep(0)
            assert size > len(LARGE)
            assert s.asked == ["/large", "/last"]
            writer.close()

    run(case())


@pytest.mark.parametrize("framing", [b"Content-Length: 400000", b"Transfer-Encoding: chunked"])
def test_a_body_that_nobody_wants_passes_and_the_connection_goes_on(run: Run, framing: bytes) -> None:
    """The answer comes before the body does; the next request is not taken for part of it."""

    async def case() -> None:
        body = b"GET /no HTTP/1.1\r\n\r\n" * 20_000
        if b"chunked" in framing:
            body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"POST /refuse HTTP/1.1\r\nHost: h\r\n" + framing + b"\r\n\r\n")
            assert statuses(await reader.readuntil(b"no")) == [401]
            writer.write(body + GET % 1 + LAST)
            assert statuses(await reader.read()) == [200, 200]
            assert s.asked == ["/refuse", "/1", "/last"]
            writer.close()

    run(case())


def test_a_body_above_the_limit_is_refused_and_its_sender_can_read_that(run: Run) -> None:
    async def case() -> None:
        async with serving(replace(LIMITS, body_bytes=1000)) as s:
            for head, body in (
                (b"Content-Length: 9000000", b"z" * 9_000_000),
                (b"Transfer-Encoding: chunked", b"89544\r\n" + b"z" * 0x89544 + b"\r\n0\r\n\r\n"),
            ):
                reader, writer = await s.connect()
                writer.write(b"POST /1 HTTP/1.1\r\nHost: h\r\n" + head + b"\r\n\r\n" + body + LAST)
                assert statuses(await reader.read()) == [413, 200]
                writer.close()

    run(case())


def test_more_beside_a_body_than_in_it_is_refused(run: Run) -> None:
    """Extensions and trailers, which nobody reads, are no way in for gigabytes."""

    async def case() -> None:
        start = b"POST /1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with serving() as s:
            for endless in (b"1;" + b"a" * 200_000, b"1\r\nx\r\n0\r\n" + b"A: b\r\n" * 40_000):
                reader, writer = await s.connect()
                writer.write(start + endless)
                assert statuses(await reader.read()) == [400]
                writer.close()
            assert statuses(await s.said(start + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n" + LAST)) == [200, 200]

    run(case())


def test_what_is_no_http_gets_its_answer_and_an_end(run: Run) -> None:
    """Also where more of it is on the way: the connection is not reset under the answer."""

    async def case() -> None:
        async with serving() as s:
            for raw in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nX : y\r\n" + b"A: b\r\n" * 100_000, b"\n" + LAST):
                assert await s.said(raw) == NOT_HTTP
            assert s.asked == []

    run(case())


@pytest.mark.parametrize(
    ("head", "kept", "chunked"),
    [
        (b"HTTP/1.1\r\nHost: h", True, True),
        (b"HTTP/1.1\r\nHost: h\r\nConnection: close", False, True),
        (b"HTTP/1.0", False, False),
        (b"HTTP/1.0\r\nConnection: keep-alive", True, False),
    ],
)
def test_each_version_gets_what_it_reads(run: Run, head: bytes, kept: bool, chunked: bool) -> None:
    """The answer says how long it is, and whether the connection goes on; a stream in HTTP/1.0 ends with it."""

    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"GET /1 " + head + b"\r\n\r\n" + LAST)
            answer = await reader.read()
            assert statuses(answer) == [200] * (1 + kept)
            first = answer.partition(b"\r\n\r\n")[0].lower()
            assert (b"connection: close" in first) == (not kept)
            assert (b"connection: keep-alive" in first) == (kept and b"1.0" in head)
            writer.close()
            reader, writer = await s.connect()
            writer.write(b"GET /stream " + head + b"\r\n\r\n")
            first = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert (b"transfer-encoding: chunked" in first) == chunked
            assert (b"connection: close" in first) == (not kept or not chunked)
            writer.close()

    run(case())


def test_a_client_is_asked_for_its_body_once_it_may_send_one(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"POST /1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
            assert await reader.readexactly(len(CONTINUE)) == CONTINUE
            writer.write(b"abcde" + LAST)
            assert statuses(await reader.read()) == [200, 200]
            writer.close()

    run(case())


def test_the_answer_to_head_has_no_body(run: Run) -> None:
    async def case() -> None:
        async with serving() as s:
            answer = await s.said(b"HEAD /refuse HTTP/1.1\r\nHost: h\r\n\r\n" + LAST)
            head, _, rest = answer.partition(b"\r\n\r\n")
            assert b"Content-Length: 2" in head
            assert rest.startswith(b"HTTP/1.1 200 OK\r\n")

    run(case())


def test_a_connection_that_was_accepted_elsewhere_is_served(run: Run) -> None:
    """With what had come on it before, which nobody has read."""

    async def case() -> None:
        async with serving() as s:
            ours, theirs = socket.socketpair()
            with theirs:
                theirs.setblocking(False)
                theirs.sendall(POST % 1 + LAST)
                await s.doors.adopt(ours)
                reader, writer = await asyncio.open_connection(sock=theirs)
                assert statuses(await reader.read()) == [200, 200]
                writer.close()

    run(case())


def test_doors_that_close_let_what_runs_end(run: Run) -> None:
    """Idle connections end at once, and what does not end within a moment is cancelled."""

    async def case() -> None:
        async with serving() as s:
            idle, _ = await s.connect()
            reader, writer = await s.connect()
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n")
            await s.began.wait()
            closing = asyncio.ensure_future(s.doors.close())
            s.go.set()
            assert statuses(await reader.read()) == [200]
            assert await idle.read() == b""
            await closing
            with socket.socket() as late, pytest.raises(ConnectionError):
                late.connect(("127.0.0.1", s.port))
        async with serving() as s:
            reader, writer = await s.connect()
            writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n")
            await s.began.wait()
            await s.doors.close()
            assert s.left.is_set()
            assert await reader.read() == b""

    run(case())
