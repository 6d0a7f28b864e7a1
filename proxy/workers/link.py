"""The connection between the parent and one worker: whole messages, in order, over a socket pair that both inherit.

Knows bytes and message types only. Its end is the other process's end: the kernel tells, however that came.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Self

from forge.proxy.workers.messages import (
    LENGTH_BYTES,
    MESSAGE_BYTES_MAX,
    FromParent,
    FromWorker,
    Message,
    decode,
    encode,
)


class Link:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Takes the socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Never waits: messages are few, and one to a process that has ended is lost like what it knew."""
        self._writer.write(encode(message))

    async def receive(self) -> FromParent | FromWorker | None:
        """The next message; None at the end."""
        try:
            length = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "little")
            if length > MESSAGE_BYTES_MAX:
                return None
            return decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Returns once the kernel has what was sent."""
        with suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()
