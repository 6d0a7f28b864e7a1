"""A connection changes its process: its socket, and what was read of a request that has just begun on it.

Owns the sockets between workers. A worker whose door gets the head of a request of another worker's session stops
reading, sends that worker the connection's descriptor with the bytes read so far (in a file of memory, for a datagram
is short), and forgets it. So every request is parsed by the process where its session lives, also on a connection that
clients share among sessions, and no answer passes a second process.
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

from forge.proxy.door.connection import Door
from forge.proxy.door.keys import Keys
from forge.proxy.door.request import Request
from forge.proxy.door.server import key_of
from forge.proxy.tasks import Tasks
from forge.proxy.workers.folder import handover_path
from forge.proxy.workers.home import KEYLESS, Homes

log = logging.getLogger(__name__)

AGAIN_S: Final = 0.005
"""Between tries while the other worker is starting, or has more than its socket holds."""
GIVE_UP_S: Final = 60.0
"""Then the connection is closed. A worker that died takes a second to come back, on a busy machine many."""
SIGN: Final = b"c"
FDS: Final = 2

Factory = Callable[[], Door]


class Handover:
    """One worker's side: ``elsewhere`` sends connections away, ``receive`` takes those of others."""

    def __init__(self, folder: Path, number: int, homes: Homes, keys: Keys, tasks: Tasks) -> None:
        self._folder = folder
        self._number = number
        self._homes = homes
        self._keys = keys
        self._tasks = tasks
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.sent = 0
        """Connections that went to another worker."""

    def elsewhere(self, request: Request, transport: asyncio.Transport, read: bytes) -> bool:
        """Whether the request is another worker's: then its connection is on the way there, and is no more to be used.
        ``read``: what has come since the request began."""
        key = key_of(request)
        session_id = self._keys.session_of(key) if key is not None else None
        home = KEYLESS if session_id is None else self._homes.of(session_id)
        if home == self._number:
            return False
        transport.pause_reading()
        self.sent += 1
        self._tasks.start(self._send(transport, read, home), "handover")
        return True

    async def _send(self, transport: asyncio.Transport, read: bytes, home: int) -> None:
        path = str(handover_path(self._folder, home))
        memory = _memory(read)
        connection: int | None = None
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while transport.get_write_buffer_size():
                    await asyncio.sleep(AGAIN_S)  # of the answer before, which is this process's to write
                if transport.is_closing():
                    return
                connection = os.dup(transport.get_extra_info("socket").fileno())
                transport.abort()  # closes one descriptor of the connection; it lives on in the other
                while not self._sent(path, (connection, memory)):
                    await asyncio.sleep(AGAIN_S)
        except OSError as error:  # the wait's TimeoutError is one
            log.warning("a connection was closed: worker %d does not take it: %r", home, error)
        finally:
            transport.abort()
            os.close(memory)
            if connection is not None:
                os.close(connection)

    def _sent(self, path: str, descriptors: tuple[int, int]) -> bool:
        try:
            # Not socket.send_fds, which leaves the address out.
            passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            self._socket.sendmsg([SIGN], [passed], 0, path)
        except (BlockingIOError, ConnectionRefusedError, FileNotFoundError):
            return False
        return True

    def receive(self, make: Factory) -> None:
        """From now on: each connection goes on in a protocol of ``make``."""
        path = handover_path(self._folder, self._number)
        path.unlink(missing_ok=True)  # a worker before this one was killed
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._inbox.bind(str(path))
        asyncio.get_running_loop().add_reader(self._inbox.fileno(), self._arrived, make)

    def _arrived(self, make: Factory) -> None:
        with suppress(BlockingIOError):
            while True:
                descriptors = _received(self._inbox)
                if len(descriptors) == FDS:
                    self._tasks.start(_go_on(descriptors, make), "handover")

    def close(self) -> None:
        """Connections that come later are closed by the kernel."""
        asyncio.get_running_loop().remove_reader(self._inbox.fileno())
        self._inbox.close()
        self._socket.close()


def _received(inbox: socket.socket) -> list[int]:
    _, descriptors, _, _ = socket.recv_fds(inbox, len(SIGN), FDS, socket.MSG_CMSG_CLOEXEC)
    return descriptors


def _memory(read: bytes) -> int:
    memory = os.memfd_create("request", os.MFD_CLOEXEC)
    os.write(memory, read)
    return memory


async def _go_on(descriptors: list[int], make: Factory) -> None:
    connection = socket.socket(fileno=descriptors[0])
    connection.setblocking(False)
    read = os.pread(descriptors[1], os.fstat(descriptors[1]).st_size, 0)
    os.close(descriptors[1])
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: _Resumed(read, make), connection)
    except OSError:
        connection.close()  # its client has left


class _Resumed(asyncio.Protocol):
    """Gives way to the door's protocol, with the bytes that were read elsewhere before any others."""

    def __init__(self, read: bytes, make: Factory) -> None:
        self._read = read
        self._make = make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._make()
        cast(asyncio.Transport, transport).set_protocol(protocol)  # uvloop's is none by name
        protocol.connection_made(transport)
        protocol.data_received(self._read)
