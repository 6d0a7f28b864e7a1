"""What the parent asks of a worker that dies at any moment of an exchange: asked again, unless that would do more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forge.proxy.workers.desk import Workers
from forge.proxy.workers.folder import control_path
from forge.storage.errors import Unavailable

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
DIES: dict[str, bytes | None] = {"unheard": None, "unanswered": b"", "amid the head": OK[:20]}
WAIT_S = 10.0


@asynccontextmanager
async def worker(folder: Path, *answers: bytes | None) -> AsyncIterator[list[bytes]]:
    """Answers so, one after another, and dies after what is no whole answer; None: before it reads the request. Gives
    the request lines."""
    lines: list[bytes] = []
    script = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said: bytes | None = OK
        while said == OK:
            said = script.pop(0)
            if said is not None:
                head = await reader.readuntil(b"\r\n\r\n")
                lines.append(head.partition(b"\r\n")[0])
                writer.write(said)
        writer.close()

    async with await asyncio.start_unix_server(serve, control_path(folder, 1)):
        yield lines


@pytest.mark.parametrize("dies", DIES.values(), ids=DIES)
async def test_what_does_no_more_the_second_time_is_asked_again(tmp_path: Path, dies: bytes | None) -> None:
    async with asyncio.timeout(WAIT_S), worker(tmp_path, OK, dies, OK) as lines, Workers(tmp_path, "t") as workers:
        for _ in range(2):
            async with await workers.send(1, "POST", "/sessions/x/close") as answer:
                assert await answer.read() == b"ok"
    assert set(lines) == {b"POST /sessions/x/close HTTP/1.1"}


@pytest.mark.parametrize("dies", [b"", OK[:20]], ids=["unanswered", "amid the head"])
async def test_what_would_do_more_the_second_time_is_not(tmp_path: Path, dies: bytes) -> None:
    async with asyncio.timeout(WAIT_S), worker(tmp_path, OK, dies, OK) as lines, Workers(tmp_path, "t") as workers:
        async with await workers.send(1, "POST", "/sessions", once=True) as answer:
            assert await answer.read() == b"ok"
        with pytest.raises(Unavailable, match="is starting again"):
            await workers.send(1, "POST", "/sessions", once=True)
    assert len(lines) == 2


async def test_one_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    async with asyncio.timeout(WAIT_S), Workers(tmp_path, "t") as workers:
        asking = asyncio.ensure_future(workers.send(1, "POST", "/sessions", once=True))
        await asyncio.wait([asking], timeout=0.1)
        assert not asking.done()
        async with worker(tmp_path, OK), await asking as answer:
            assert await answer.read() == b"ok"
