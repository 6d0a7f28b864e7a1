"""All connections of the data plane: where they come from, whose client is too slow, how they end together.

Knows no HTTP. A socket that another process has accepted is served like one of our own.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from forge.proxy.config import Limits
from forge.proxy.door.connection import LINGER_S, Door, Elsewhere, Handler
from forge.proxy.door.head import Heads

STOP_S: Final = 1.0
"""For what still runs when all doors close: first to end by itself, then to end cancelled."""
LOOKS: Final = 2
"""At every connection, within the shortest time that one may take."""


class Doors:
    """Opened in a running loop; ``close`` must follow."""

    def __init__(self, handler: Handler, limits: Limits, elsewhere: Elsewhere | None = None) -> None:
        self._handler = handler
        self._limits = limits
        self._elsewhere = elsewhere
        self._open: set[Door] = set()
        self._heads = Heads()
        self._clock = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._every_s = min(limits.head_s, limits.idle_s, LINGER_S) / LOOKS
        self._timer = self._clock.call_later(self._every_s, self._look)

    def door(self) -> Door:
        """The protocol of one connection."""
        return Door(self._handler, self._limits, self._open, self._heads, self._elsewhere)

    async def listen(self, bound: socket.socket, backlog: int) -> None:
        self._server = await self._clock.create_server(self.door, sock=bound, backlog=backlog)

    async def adopt(self, accepted: socket.socket) -> None:
        """A connection that was accepted elsewhere, whatever has come on it and is not read yet."""
        await self._clock.connect_accepted_socket(self.door, accepted)

    async def close(self) -> None:
        """No new connections; idle ones end, and those that serve a moment later."""
        if self._server is not None:
            self._server.close()
        self._timer.cancel()
        for cancelled in (False, True):
            running = [door.task for door in self._open if door.task is not None]
            if cancelled:
                for task in running:
                    task.cancel()
            if running:
                await asyncio.wait(running, timeout=STOP_S)
        for door in list(self._open):
            door.hang_up()
        await asyncio.sleep(0)  # transports close in the loop's next round

    def _look(self) -> None:
        now = self._clock.time()
        for door in [door for door in self._open if door.due <= now]:
            door.give_up()
        self._timer = self._clock.call_later(self._every_s, self._look)
