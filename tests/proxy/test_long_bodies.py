"""Bodies of stated length that are received where they stay: of any size, cut anywhere, broken off anywhere.

Both sides of the proxy, on both event loops, and what comes behind such a body on the same connection.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forge.proxy.body_buffer import BUFFERED_FROM
from forge.proxy.config import Limits
from forge.proxy.door.bodies import read_body
from forge.proxy.door.connection import LINGER_S
from forge.proxy.door.doors import Doors
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import Request
from forge.proxy.upstreams.client import BrokeOff, EngineClient, Reply, Silent
from forge.proxy.upstreams.connection import BUFFER_BYTES, PIECE_BYTES
from tests.loops import Run, on_both, running_on
from tests.proxy.test_engine_client import OK, Server, talking
from tests.security.wire import statuses
from tests.tls import self_signed

WAIT_S = 30.0
SIZES = [
    size + more
    for size in (BUFFERED_FROM, PIECE_BYTES, PIECE_BYTES + BUFFERED_FROM, 2 * PIECE_BYTES)
    for more in (-1, 0, 1)
]
LIMITS = Limits(body_bytes=max(SIZES))


@on_both
def run(request: pytest.FixtureRequest) -> Run:
    return running_on(request.param, WAIT_S)


def body_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def cut(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """In pieces from a byte to all that is left."""
    while data:
        size = int(len(data) ** rng.random()) + 1
        yield data[:size]
        data = data[size:]


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("size", SIZES)
def test_an_answer_of_any_length_in_any_pieces(run: Run, size: int) -> None:
    async def case() -> None:
        body, rng = body_of(size), random.Random(size)
        script = [list(cut(answer(body), rng)) for _ in range(4)]
        server = Server(*[each for long in script for each in (long, [OK])])
        async with talking(server) as client:
            for _ in script:
                assert await taken(await client.send("POST", server.url, b"{}")) == body
                assert await taken(await client.send("POST", server.url, b"{}")) == b"ok"
            assert server.connections == 1

    run(case())


async def taken(reply: Reply) -> bytes:
    got: list[bytes] = []
    try:
        while chunks := await reply.take(None, 1 << 18):
            got += chunks
    finally:
        reply.close()
    return b"".join(got)


@pytest.mark.parametrize("ends", [True, False], ids=["closed", "silent"])
def test_what_came_of_an_answer_that_breaks_off_is_given_first(run: Run, ends: bool) -> None:
    async def case() -> None:
        body, rng = body_of(2 * PIECE_BYTES), random.Random(7)
        for came in (1, BUFFERED_FROM, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES - 1):
            said = answer(body)[: came - len(body)]
            server = Server([*cut(said, rng), None if ends else b""])
            async with talking(server, silence_s=5.0 if ends else 0.2) as client:
                reply, got = await client.send("POST", server.url, b"{}"), b""
                while len(got) < came:
                    got += b"".join(await reply.take(None, 1 << 18) or ())
                assert got == body[:came]
                with pytest.raises(BrokeOff if ends else Silent):
                    await reply.take(None, 1 << 18)
                reply.close()

    run(case())


def test_what_goes_on_behind_a_long_answer_spoils_the_connection(run: Run) -> None:
    async def case() -> None:
        body = body_of(PIECE_BYTES)
        server = Server([answer(body), b"more"], [OK])
        async with talking(server) as client:
            assert await taken(await client.send("POST", server.url, b"{}")) == body
            assert await taken(await client.send("POST", server.url, b"{}")) == b"ok"
            assert server.connections == 2

    run(case())


def test_an_answer_by_tls_is_whole_though_its_server_closes_at_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is decrypted and not taken yet when the connection ends is not lost."""

    async def case() -> None:
        context, certificate = self_signed(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        server = Server()
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context)
        url = f"https://localhost:{listening.sockets[0].getsockname()[1]}"
        async with listening:
            async with EngineClient(key=None, connect_s=5.0, silence_s=5.0) as client:
                for size in (*SIZES, 3 * BUFFER_BYTES):
                    body = body_of(size)
                    for _ in range(4):
                        server.answers.append([answer(body), None])
                        assert await taken(await client.send("POST", url, b"{}")) == body
            await server.ended()

    run(case())


@asynccontextmanager
async def door() -> AsyncIterator[tuple[int, list[bytes]]]:
    """Its port, and the bodies that it was given; nobody looks at those of ``/refuse``."""
    bodies: list[bytes] = []

    async def handle(request: Request) -> None:
        if request.path == "/refuse":
            return request.outlet.answer(401, b"no")
        try:
            bodies.append(await read_body(request, LIMITS))
        except Refused as refused:
            return request.outlet.answer(refused.status, refused.code.encode())
        return request.outlet.answer(200, b"yes")

    doors = Doors(handle, LIMITS)
    bound = socket.create_server(("127.0.0.1", 0))
    await doors.listen(bound, 100)
    try:
        yield bound.getsockname()[1], bodies
    finally:
        await doors.close()


def request(body: bytes, path: bytes = b"/", *heads: bytes) -> bytes:
    length = b"Content-Length: %d" % len(body)
    return b"\r\n".join([b"POST %b HTTP/1.1" % path, b"Host: h", length, *heads, b"", body])


@pytest.mark.parametrize("size", SIZES)
def test_a_request_of_any_length_in_any_pieces(run: Run, size: int) -> None:
    """And the next one behind it, in the same piece."""

    async def case() -> None:
        body, rng = body_of(size), random.Random(size)
        async with door() as (port, bodies):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            script = request(body) + request(b"short") + request(body) + request(b"last", b"/", b"Connection: close")
            for piece in cut(script, rng):
                writer.write(piece)
                await writer.drain()
            assert statuses(await reader.read()) == [200] * 4
            assert bodies == [body, b"short", body, b"last"]
            writer.close()

    run(case())


def test_a_long_request_that_nobody_wants_is_passed_over(run: Run) -> None:
    """Its answer comes before most of it, or amid it, or behind it: the next request is read as such."""

    async def case() -> None:
        body = body_of(PIECE_BYTES)
        last = request(b"last", b"/", b"Connection: close")
        async with door() as (port, bodies):
            for first in (1 << 10, BUFFERED_FROM * 4, PIECE_BYTES):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                raw = request(body, b"/refuse")
                writer.write(raw[:first])
                assert statuses(await reader.readuntil(b"no")) == [401]
                writer.write(raw[first:] + request(body) + last)
                assert statuses(await reader.read()) == [200, 200]
                writer.close()
            assert bodies == [body, b"last"] * 3

    run(case())


def test_a_long_request_that_nobody_wants_has_its_end(run: Run) -> None:
    """All of the rest comes at once, and nothing behind it."""

    async def case() -> None:
        body = body_of(BUFFERED_FROM + (16 << 10))
        raw = request(body, b"/refuse", b"Connection: close")
        async with door() as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(raw[: 8 << 10])
            assert statuses(await reader.readuntil(b"no")) == [401]
            writer.write(raw[8 << 10 :])
            assert await asyncio.wait_for(reader.read(), LINGER_S / 2) == b""
            writer.close()

    run(case())


def test_a_client_that_leaves_within_a_long_body_harms_nobody(run: Run) -> None:
    async def case() -> None:
        body, rng = body_of(PIECE_BYTES), random.Random(3)
        async with door() as (port, bodies):
            for _ in range(20):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request(body)[: rng.randrange(BUFFERED_FROM, PIECE_BYTES)])
                await asyncio.sleep(0)
                if rng.random() < 0.5:
                    writer.transport.abort()
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request(body, b"/", b"Connection: close"))
            assert statuses(await reader.read()) == [200]
            assert bodies == [body]
            writer.close()

    run(case())
