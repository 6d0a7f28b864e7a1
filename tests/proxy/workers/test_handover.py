"""A connection goes on in the worker where its request's session lives, with every byte, in whatever pieces they come.

Both ends are in this process, on real sockets; on both event loops, for the proxy serves on uvloop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from forge.proxy.config import Limits
from forge.proxy.door.connection import Handler
from forge.proxy.door.doors import Doors
from forge.proxy.door.keys import Keys
from forge.proxy.door.request import Request
from forge.proxy.tasks import Tasks
from forge.proxy.workers.handover import Handover
from forge.proxy.workers.home import Homes, OwnIds

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
SECRET = b"s" * 32
WAIT_S = 10.0


Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(main(), WAIT_S))

    return run


@dataclass
class Two:
    """Two workers behind one port; each answers with its number and what it was sent."""

    port: int
    keys: list[str]
    """One of each worker's sessions."""
    handovers: list[Handover]
    doors: list[Doors]


@asynccontextmanager
async def two_workers(tmp: Path, *, receiving: tuple[int, ...] = (0, 1)) -> AsyncIterator[Two]:
    homes, keys = Homes(2), Keys(SECRET)
    listener = socket.create_server(("127.0.0.1", 0))
    async with Tasks() as tasks:
        handovers = [Handover(tmp, number, homes, keys, tasks) for number in range(2)]
        doors = [Doors(_answer(number), Limits(), handovers[number].elsewhere) for number in range(2)]
        for number in receiving:
            handovers[number].receive(doors[number].door)
        await doors[0].listen(listener, 1024)  # all connections come in at the first
        made = [keys.make(OwnIds(homes, number).next()) for number in range(2)]
        try:
            yield Two(listener.getsockname()[1], made, handovers, doors)
        finally:
            for number in range(2):
                await doors[number].close()
            for number in receiving:
                handovers[number].close()


def _answer(number: int) -> Handler:
    async def answer(request: Request) -> None:
        request.outlet.go_on()
        await request.arrived()
        said = f"{number} {request.path} {len(request.take())}".encode()
        request.outlet.answer(200, said, {"Content-Type": "text/plain"})

    return answer


def request(path: str, key: str | None, body: bytes = b"", more: str = "") -> bytes:
    bearer = f"Authorization: Bearer {key}\r\n" if key is not None else ""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{bearer}{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[str]:
    found = []
    while len(found) < count:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if "100 continue" in head:
            continue
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        found.append((await reader.readexactly(length)).decode())
    return found


def test_a_connection_that_sessions_share_follows_each_request(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            own, other = two.keys
            for turn, (key, number) in enumerate([(other, 1), (other, 1), (own, 0), (None, 0), (other, 1), (own, 0)]):
                writer.write(request(f"/{turn}", key, b"x" * turn))
                assert await answers(reader, 1) == [f"{number} /{turn} {turn}"]
            assert [each.sent for each in two.handovers] == [2, 2]
            writer.close()

    run(main)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_every_byte_arrives_in_whatever_pieces(run: Run, tmp_path: Path, size: int) -> None:
    """Single bytes, pieces that split the head's end, and a body that is far larger than one read."""

    async def main() -> None:
        async with two_workers(tmp_path) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            body = b"y" * (40 if size < 100 else 3 << 20)
            sent = request("/a", two.keys[1], body)
            for at in range(0, len(sent), size):
                writer.write(sent[at : at + size])
                await writer.drain()
                await asyncio.sleep(0)
            assert await answers(reader, 1) == [f"1 /a {len(body)}"]
            writer.close()

    run(main)


def test_requests_sent_ahead_are_answered_in_order(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            order = [0, 1, 1, 0, 1, 0, 0, 1]
            writer.write(b"".join(request(f"/{turn}", two.keys[n], b"z" * turn) for turn, n in enumerate(order)))
            assert await answers(reader, len(order)) == [f"{n} /{turn} {turn}" for turn, n in enumerate(order)]
            writer.close()

    run(main)


def test_a_client_that_waits_to_be_told_is_told_by_the_home(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            head, _, body = request("/a", two.keys[1], b"body", "Expect: 100-continue\r\n").partition(b"body")
            writer.write(head)
            assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"body" + body)
            assert await answers(reader, 1) == ["1 /a 4"]
            writer.close()

    run(main)


def test_a_forged_key_is_answered_where_it_comes_in(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            writer.write(request("/a", two.keys[1][:-1] + ("1" if two.keys[1].endswith("0") else "0")))
            assert await answers(reader, 1) == ["0 /a 0"]
            writer.close()

    run(main)


def test_a_connection_waits_for_a_worker_that_is_starting(run: Run, tmp_path: Path) -> None:
    async def main() -> None:
        async with two_workers(tmp_path, receiving=(0,)) as two:
            reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
            writer.write(request("/a", two.keys[1]))
            waiting = asyncio.ensure_future(answers(reader, 1))
            writer2 = (await asyncio.open_connection("127.0.0.1", two.port))[1]
            writer2.write(request("/b", two.keys[0]))  # others are served meanwhile
            async with asyncio.timeout(WAIT_S):
                while two.handovers[0].sent == 0:
                    await asyncio.sleep(0)
            assert not waiting.done()
            two.handovers[1].receive(two.doors[1].door)
            assert await waiting == ["1 /a 0"]
            two.handovers[1].close()
            for each in (writer, writer2):
                each.close()

    run(main)


def test_many_at_once_all_arrive(run: Run, tmp_path: Path) -> None:
    """More than a datagram socket holds."""

    async def one(two: Two, turn: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", two.port)
        writer.write(request(f"/{turn}", two.keys[turn % 2], b"b" * turn))
        assert await answers(reader, 1) == [f"{turn % 2} /{turn} {turn}"]
        writer.close()

    async def main() -> None:
        async with two_workers(tmp_path) as two:
            await asyncio.gather(*(one(two, turn) for turn in range(200)))

    run(main)
