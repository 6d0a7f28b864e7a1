"""A worker as its parent sees it: a process that is started, asked, and started again when it ends by itself.

Owns the process and what is asked of it. A worker that does not answer is ended: it would serve by what holds no
more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from forge.proxy.workers.link import Link
from forge.proxy.workers.messages import Ack, Asked, Begin, Down, Joined, Refused
from forge.storage.errors import BadInput, Exit, ForgeError, Unavailable, Untrainable

log = logging.getLogger(__name__)

ANSWER_S: Final = 30.0
"""For a worker to take a message in: more than any single thing keeps it busy."""
AGAIN_S: Final = 0.2
"""Before a worker that ended is started again; doubles while it cannot start."""
AGAIN_MAX_S: Final = 5.0
END_S: Final = 5.0
"""For a process to end once its link has."""

KINDS: Final[dict[int, type[ForgeError]]] = {Exit.BAD_INPUT: BadInput, Exit.UNTRAINABLE: Untrainable}


class WorkerProcess:
    """``number`` of ``begin`` names it."""

    def __init__(self, begin: Begin, listener: socket.socket, met_down: Callable[[Down], None]) -> None:
        self.number = begin.number
        self.writer: int = begin.config["writer"]
        self.in_flight: dict[str, int] = {}
        """Calls running on each replica, when it last said so."""
        self.up = False
        """It serves."""
        self.starts = 0
        self.ending = False
        """It is to end, and not to be started again."""
        self._begin = begin
        self._listener = listener
        self._met_down = met_down
        self._process: Process | None = None
        self._link: Link | None = None
        self._joined = False
        self._asked: dict[int, asyncio.Future[Ack | None]] = {}

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> Joined:
        """Raises the worker's own error if it cannot."""
        ours, theirs = socket.socketpair()
        with theirs:
            ends = (theirs.fileno(), self._listener.fileno())
            command = (sys.executable, "-m", "forge.proxy.workers", *map(str, ends))
            self._process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, pass_fds=ends)
        self._link = await Link.over(ours)
        self._link.send(self._begin)
        said = await self._link.receive()
        if isinstance(said, Joined):
            self._joined = True
            self.starts += 1
            return said
        await self._ended()
        if isinstance(said, Refused):
            raise KINDS.get(said.code, Unavailable)(said.message, said.hint)
        raise Unavailable(f"worker {self.number} ended as it started", "the log above says why")

    async def run(self, again: Callable[[WorkerProcess], None]) -> None:
        """Keeps it running until it is to end. ``again``: called when another process has taken its place."""
        while True:
            await self._listen()
            code = await self._gone()
            if self.ending:
                return
            log.error("worker %d ended with exit code %s; it is started again, its calls are rows", self.number, code)
            await self._restart()
            again(self)

    async def _listen(self) -> None:
        assert self._link is not None
        while (message := await self._link.receive()) is not None:
            match message:
                case Ack():
                    self.in_flight = message.in_flight
                    if (answer := self._asked.get(message.number)) is not None and not answer.done():
                        answer.set_result(message)
                case Down():
                    self._met_down(message)
                case _:
                    pass

    async def _restart(self) -> None:
        wait_s = AGAIN_S
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.start()
            except ForgeError as error:
                log.error("worker %d does not start: %s", self.number, error.message)
                wait_s = min(2 * wait_s, AGAIN_MAX_S)
            else:
                return

    async def ask(self, message: Asked, wait_s: float | None = ANSWER_S) -> Ack | None:
        """None: it has ended, and what was asked holds no more."""
        if self._link is None or not self._joined:
            return None
        answer: asyncio.Future[Ack | None] = asyncio.get_running_loop().create_future()
        self._asked[message.number] = answer
        self._link.send(message)
        try:
            async with asyncio.timeout(wait_s):
                return await answer
        except TimeoutError:
            log.error("worker %d does not answer: it is ended", self.number)
            self.kill()
            return None
        finally:
            del self._asked[message.number]

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def end(self) -> None:
        """What it has not journalled yet is journalled as it ends."""
        self.ending = True
        await self._ended()

    async def _gone(self) -> int | None:
        self._joined, self.up, self.in_flight = False, False, {}
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(None)
        return await self._ended()

    async def _ended(self) -> int | None:
        if self._link is not None:
            self._link.close()
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(END_S):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()
