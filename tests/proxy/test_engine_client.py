"""The engine side's own HTTP, against a server that says any bytes: what is believed, what is refused, what is reused.

Every case runs on both event loops: the proxy serves on uvloop, its tests elsewhere on asyncio's.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from forge.proxy.config import check_upstream
from forge.proxy.upstreams.client import BrokeOff, EngineClient, NotBegun, Silent
from forge.proxy.upstreams.connection import BUFFER_BYTES, HEAD_BYTES
from tests.loops import Run, on_both, running_on

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WAIT_S = 10.0


@on_both
def run(request: pytest.FixtureRequest) -> Run:
    return running_on(request.param, WAIT_S)


class Server:
    """Answers each request with the next bytes of its script; ``None`` closes the connection there."""

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[bytes, bytes]] = []
        self.connections = 0
        self.open = 0
        self.gone = asyncio.Event()
        """A client left, or was sent away."""
        self.go = asyncio.Event()
        """Set: an answer goes on behind an empty piece."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, IndexError):
            while await self._answer(reader, writer):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1
        self.gone.set()

    async def ended(self) -> None:
        self.go.set()
        while self.open:
            await asyncio.sleep(0)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
        self.requests.append((head, await reader.readexactly(size)))
        for piece in self.answers.pop(0):
            if piece is None:
                return False
            if not piece:
                await self.go.wait()
            writer.write(piece)
            await writer.drain()
        return True


@asynccontextmanager
async def talking(server: Server, **options: Any) -> AsyncIterator[EngineClient]:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        async with EngineClient(**{"key": None, "connect_s": 5.0, "silence_s": 5.0} | options) as client:
            yield client
        await server.ended()


async def whole(client: EngineClient, url: str, body: bytes | None = b"{}") -> tuple[int, bytes]:
    """Status and body. Raises what the client raises."""
    reply = await client.send("POST", url + "/v1/x", body)
    got = b""
    try:
        while chunk := b"".join(await reply.take() or ()):
            got += chunk
    finally:
        reply.close()
    return reply.status, got


def test_a_stall_of_ours_is_no_fault_of_the_server(run: Run) -> None:
    """The loop stands still for longer than a connection may take, while one is being made."""

    async def case() -> None:
        server = Server([OK])
        async with talking(server, connect_s=0.05) as client:
            asking = asyncio.ensure_future(whole(client, server.url))
            await asyncio.sleep(0)
            time.sleep(1.0)
            assert await asking == (200, b"ok")
        assert len(server.requests) == 1

    run(case())


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        ([OK], b"ok"),
        ([b"HTTP/1.1 200 OK\r\nContent-", b"Length: 4\r\n\r\nwh", b"ole"[:2]], b"whol"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], b""),
        ([CHUNKED + b"3\r\nabc\r\n", b"A;x=y\r\n0123456789\r\n0\r\n\r\n"], b"abc0123456789"),
        ([CHUNKED + b"1\r\na\r\n0\r\nX-Trailer: 1\r\n\r\n"], b"a"),
        ([b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"the end", None], b"until the end"),
        ([b"HTTP/1.0 200 OK\r\n\r\nold", None], b"old"),
        ([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK], b"ok"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
    ],
    ids=["length", "pieces", "empty", "chunked", "trailer", "until close", "1.0", "interim", "204"],
)
def test_what_servers_say_in_good_order(run: Run, answer: list[bytes | None], body: bytes) -> None:
    async def case() -> None:
        server = Server(answer)
        async with talking(server) as client:
            assert (await whole(client, server.url))[1] == body

    run(case())


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"g\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"ffffffffffffffffff\r\nabc\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"3\nabc\n0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2a\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nX\0: a\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n folded\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/9.9 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES + b"\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(HEAD_BYTES // 4)) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 2 * HEAD_BYTES,
        CHUNKED + b"0\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(HEAD_BYTES // 4)) + b"\r\n",
        b"HTTP/1.1 100 Continue\r\nX: " + b"a" * (HEAD_BYTES // 2) + b"\r\n\r\n" + b"HTTP/1.1 100 Continue\r\nX: "
        + b"a" * (HEAD_BYTES // 2) + b"\r\n\r\n" + OK,
    ],
)  # fmt: skip
def test_what_can_be_read_in_two_ways_is_refused(run: Run, answer: bytes) -> None:
    async def case() -> None:
        server = Server([answer])
        async with talking(server) as client:
            with pytest.raises(BrokeOff):
                await whole(client, server.url)
            await server.gone.wait()

    run(case())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        CHUNKED,
        CHUNKED + b"5\r\nab",
        CHUNKED + b"2\r\nok\r\n",
        CHUNKED + b"2\r\nok\r\n0\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_a_body_without_its_end_is_a_break(run: Run, answer: bytes) -> None:
    async def case() -> None:
        server = Server([answer, None] if answer else [None])
        async with talking(server) as client:
            with pytest.raises(BrokeOff):
                await whole(client, server.url)
            assert len(server.requests) == 1  # it may have begun: never sent again

    run(case())


def test_what_came_before_a_break_is_given_first(run: Run) -> None:
    async def case() -> None:
        server = Server([CHUNKED + b"2\r\nok\r\n", None])
        async with talking(server) as client:
            reply = await client.send("POST", server.url, b"{}")
            assert await reply.take() == [b"ok"]
            with pytest.raises(BrokeOff):
                await reply.take()
            reply.close()

    run(case())


def test_a_connection_is_used_again_and_a_spoiled_one_is_not(run: Run) -> None:
    async def case() -> None:
        closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
        server = Server([OK], [OK], [closing], [OK + OK], [OK], [OK])
        async with talking(server) as client:
            for expected in (1, 1, 1, 2, 3):
                assert await whole(client, server.url) == (200, b"ok")
                assert server.connections == expected
            reply = await client.send("POST", server.url, b"{}")  # not read to its end
            reply.close()
            reply.close()
            assert server.connections == 3

    run(case())


def test_an_idle_connection_that_its_server_closed_is_not_used(run: Run) -> None:
    """The engine cannot have begun: nothing was sent on it."""

    async def case() -> None:
        server = Server([OK, None], [OK])
        async with talking(server) as client:
            assert await whole(client, server.url) == (200, b"ok")
            await server.gone.wait()
            assert await whole(client, server.url) == (200, b"ok")
            assert server.connections == 2
            assert len(server.requests) == 2

    run(case())


def test_what_an_idle_connection_says_is_no_answer_to_the_next_request(run: Run) -> None:
    async def case() -> None:
        server = Server([OK, b"", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", None], [OK])
        async with talking(server) as client:
            assert await whole(client, server.url) == (200, b"ok")
            server.go.set()
            await server.gone.wait()
            assert await whole(client, server.url) == (200, b"ok")

    run(case())


def test_an_early_answer_is_heard_while_the_request_is_still_being_sent(run: Run) -> None:
    async def case() -> None:
        refused, ended = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
            await refused.wait()
            writer.close()
            ended.set()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with listening, EngineClient(key=None, connect_s=5, silence_s=5) as client:
            reply = await client.send("POST", url, b"x" * (32 << 20))
            assert (reply.status, await reply.body(100)) == (413, b"no")
            assert not reply._connection.reusable  # half a request is still on it
            reply.close()
            refused.set()
            await ended.wait()

    run(case())


def test_a_server_waits_while_nobody_takes_what_it_said(run: Run) -> None:
    async def case() -> None:
        size = 64 << 20
        sent = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
            with suppress(ConnectionError):
                while sent < size:
                    writer.write(b"y" * (1 << 20))
                    await writer.drain()
                    sent += 1 << 20
            writer.close()

        listening = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        async with listening, EngineClient(key=None, connect_s=5, silence_s=5) as client:
            reply = await client.send("GET", url)
            while not reply._connection._paused:
                await asyncio.sleep(0)
            assert sent < size
            got = 0
            while chunk := b"".join(await reply.take() or ()):
                assert len(chunk) <= BUFFER_BYTES + (1 << 20)
                got += len(chunk)
            assert got == size
            reply.close()

    run(case())


def test_silence_has_a_limit_and_a_wait_of_its_own(run: Run) -> None:
    async def case() -> None:
        server = Server([CHUNKED + b"2\r\nok\r\n", b""], [b""])
        async with talking(server, silence_s=0.3) as client:
            reply = await client.send("POST", server.url, b"{}")
            assert await reply.take(0.05) == [b"ok"]
            assert await reply.take(0.05) is None
            with pytest.raises(Silent):
                await reply.take(5.0)
            reply.close()
            with pytest.raises(Silent):
                await client.send("POST", server.url, b"{}")

    run(case())


def test_a_sink_gets_what_comes_until_it_refuses_and_then_nothing_is_out_of_order(run: Run) -> None:
    """The empty pieces of the script wait for ``go``: the sink is there before what follows."""

    async def case() -> None:
        chunks = [b"1\r\n%d\r\n" % number for number in range(6)]
        server = Server([CHUNKED + chunks[0], b"", b"".join(chunks[1:]) + b"0\r\n\r\n"])
        async with talking(server) as client:
            reply = await client.send("POST", server.url, b"{}")
            assert await reply.take() == [b"0"]
            passed: list[bytes] = []

            def sink(chunk: bytes) -> bool:
                if chunk == b"3":
                    return False
                passed.append(chunk)
                return True

            taking = asyncio.ensure_future(reply.take(5.0, sink=sink))
            await asyncio.sleep(0)
            server.go.set()
            rest = await taking
            assert (passed, rest) == ([b"1", b"2"], [b"3", b"4", b"5"])
            assert await reply.take() == []
            reply.close()

    run(case())


def test_what_a_sink_raises_is_raised_to_whoever_takes(run: Run) -> None:
    async def case() -> None:
        server = Server([CHUNKED, b"", b"2\r\nok\r\n0\r\n\r\n"])
        async with talking(server) as client:
            reply = await client.send("POST", server.url, b"{}")

            def sink(chunk: bytes) -> bool:
                raise LookupError(chunk)

            taking = asyncio.ensure_future(reply.take(5.0, sink=sink))
            await asyncio.sleep(0)
            server.go.set()
            with pytest.raises(LookupError):
                await taking
            reply.close()

    run(case())


def test_a_body_of_stated_length_comes_in_as_few_pieces_as_were_asked_for(run: Run) -> None:
    async def case() -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n"
        server = Server([head + b"a" * 10, b"", b"b" * 10, b"c" * 10], [OK])
        async with talking(server) as client:
            reply = await client.send("POST", server.url, b"{}")
            taking = asyncio.ensure_future(reply.take(least=100))
            await asyncio.sleep(0)
            assert not taking.done()
            server.go.set()
            assert b"".join(await taking or ()) == b"a" * 10 + b"b" * 10 + b"c" * 10
            assert await reply.take() == []
            reply.close()
            assert await whole(client, server.url) == (200, b"ok")
            assert server.connections == 1

    run(case())


def test_a_call_that_is_given_up_is_seen_by_its_server(run: Run) -> None:
    async def case() -> None:
        server = Server([b""])
        async with talking(server) as client:
            asking = asyncio.ensure_future(client.send("POST", server.url, b"{}"))
            while not server.requests:
                await asyncio.sleep(0)
            server.answers.append([OK])
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            server.go.set()
            await server.gone.wait()
            assert await whole(client, server.url) == (200, b"ok")
            assert server.connections == 2

    run(case())


def test_nobody_there_means_it_has_not_begun(run: Run) -> None:
    async def case() -> None:
        async with EngineClient(key=None, connect_s=1, silence_s=5) as client:
            for url in ("http://127.0.0.1:1", "http://", "ftp://x", "http://x:notaport", "http://127.0.0.1/\r\nX: y"):
                with pytest.raises(NotBegun):
                    await client.send("GET", url)

    run(case())


def test_a_unix_socket_by_its_path(run: Run, tmp_path: Path) -> None:
    async def case() -> None:
        server = Server([OK])
        path = tmp_path / "Engine.sock"
        listening = await asyncio.start_unix_server(server.serve, path)
        async with listening:
            async with EngineClient(key="sk-x", connect_s=5, silence_s=5) as client:
                assert await whole(client, check_upstream(f"unix:{path}")) == (200, b"ok")
                assert check_upstream(f"http+unix://{quote(str(path), safe='')}/v1/").endswith("Engine.sock")
            await server.ended()
        head = server.requests[0][0]
        assert head.startswith(b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\n")
        assert b"Authorization: Bearer sk-x\r\n" in head

    run(case())


def test_tls_is_checked(run: Run) -> None:
    """A server that speaks no TLS, or that nobody vouches for, has seen nothing of the request."""

    async def case() -> None:
        server = Server([OK])
        async with talking(server) as client:
            with pytest.raises(NotBegun):
                await client.send("POST", server.url.replace("http:", "https:"), b"{}")
            assert not server.requests
        assert client._context().verify_mode == ssl.CERT_REQUIRED
        assert client._context().check_hostname

    run(case())
