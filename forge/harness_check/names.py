"""Which outside hosts a job asks for: a name server of its own that writes every name down and knows none.

So nothing outside is reached by name, and what a harness would reach is seen. An address that it has built in is not.
Binding port 53 takes a right that not every user has; then nothing is traced, and that is said. IPv4 loopback, UDP.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

PORT: Final = 53
NO_SUCH_NAME: Final = b"\x81\x83" + b"\0\1\0\0\0\0\0\0"
"""Flags and counts of an answer: it repeats the one question and holds no record."""
HEADER: Final = 12
LABEL_MAX: Final = 63
DATAGRAM_MAX: Final = 4096
SETTINGS: Final = "nameserver {address}\noptions timeout:2 attempts:1\n"


class Names:
    """``asked``: the names with a dot in them, in the order of their first question."""

    def __init__(self, asked_at: socket.socket, resolv: Path) -> None:
        self.resolv = resolv
        """The job's ``/etc/resolv.conf``."""
        self.asked: list[str] = []
        self._socket = asked_at
        resolv.write_text(SETTINGS.format(address=asked_at.getsockname()[0]))

    def answer(self) -> None:
        """One question, to be read from the socket."""
        with suppress(OSError):  # whoever asked is gone
            data, sender = self._socket.recvfrom(DATAGRAM_MAX)
            if (found := question(data)) is None:
                return
            name, end = found
            if "." in name and name not in self.asked:
                self.asked.append(name)
            self._socket.sendto(data[:2] + NO_SUCH_NAME + data[HEADER:end], sender)


@asynccontextmanager
async def listening(folder: Path) -> AsyncIterator[Names | None]:
    """None where port 53 cannot be had."""
    address = "127." + ".".join(str(1 + each % 254) for each in secrets.token_bytes(3))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked_at:
        asked_at.setblocking(False)
        try:
            asked_at.bind((address, PORT))
        except OSError:
            yield None
            return
        names = Names(asked_at, folder / "resolv.conf")
        loop = asyncio.get_running_loop()
        loop.add_reader(asked_at, names.answer)
        try:
            yield names
        finally:
            loop.remove_reader(asked_at)


def question(data: bytes) -> tuple[str, int] | None:
    """The name asked for, and where the question ends; None if it is not one."""
    labels, at = [], HEADER
    while at < len(data) and 0 < data[at] <= LABEL_MAX:
        labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", "replace").lower())
        at += 1 + data[at]
    end = at + 5  # the root label, type and class
    return (".".join(labels), end) if labels and end <= len(data) and data[at] == 0 else None
