"""What may reach the client, and when: holds pieces back until the journal has what they rest on.

A piece with ``Hold.DATA`` goes out after every engine byte so far is written; from the first ``Hold.CLOSE`` on
everything waits for ``release``, which the call makes once its ``close`` frame stands. Counts and hashes what goes
out, with what is held: the ``close`` frame names both before the last pieces leave.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence

from aiohttp import web

from forge.proxy.dialects.base import Hold, Piece
from forge.proxy.recording.recorder import Recording


class ClientLeft(Exception):
    """The client is gone, or takes nothing any more."""


class Delivery:
    def __init__(self, request: web.BaseRequest, recording: Recording, write_s: float) -> None:
        self._request = request
        self._recording = recording
        self._write_s = write_s
        self._response: web.StreamResponse | None = None
        self._held: list[bytes] = []
        self._sent = 0
        self.first_us: int | None = None
        """When the first piece had gone out, in the recorder's time."""
        self._wrote = time.monotonic()
        self._sha = hashlib.sha256()

    def total(self) -> tuple[int, str]:
        """Bytes that went out or are held, and their sha256."""
        sha = self._sha.copy()
        for data in self._held:
            sha.update(data)
        return self._sent + sum(map(len, self._held)), sha.hexdigest()

    @property
    def silent_s(self) -> float:
        """Since the client last got anything."""
        return time.monotonic() - self._wrote

    @property
    def started(self) -> bool:
        return self._response is not None

    @property
    def begun(self) -> bool:
        """A piece of the answer went out."""
        return self.first_us is not None

    async def start(self, response: web.StreamResponse) -> None:
        """Sends the head."""
        try:
            await response.prepare(self._request)
        except ConnectionError as error:
            raise ClientLeft from error
        self._response = response
        self._wrote = time.monotonic()

    async def give(self, pieces: Sequence[Piece]) -> None:
        """Raises ``ClientLeft``, and ``JournalFull`` where a piece would have to go out unrecorded."""
        for piece in pieces:
            if self._held or piece.hold is Hold.CLOSE:
                self.hold(piece.data)
                continue
            durable_from = self._recording.flush() if piece.hold is Hold.DATA else None
            if durable_from is not None:
                await self._recording.recorder.journal.durable(durable_from)
            await self.write(piece.data)
            if self.first_us is None:
                self.first_us = self._recording.recorder.now()

    def hold(self, data: bytes) -> None:
        self._held.append(data)

    def replace_held(self, data: bytes) -> None:
        """What is held will never be sent; ``data`` ends the answer."""
        self._held = [data]

    async def release(self) -> web.StreamResponse:
        """The ``close`` frame is written: everything held goes out, and the answer ends."""
        held, self._held = b"".join(self._held), []
        if held:
            await self.write(held)
        assert self._response is not None
        try:
            await self._response.write_eof()
        except ConnectionError as error:
            raise ClientLeft from error
        return self._response

    def drop_held(self) -> None:
        """What is held will never be sent, and nothing in its place."""
        self._held = []

    def cut(self) -> web.StreamResponse:
        """The client's connection breaks off, as the engine's did: no end of the body comes."""
        assert self._response is not None
        if self._request.transport is not None:
            self._request.transport.close()
        return self._response

    async def write(self, data: bytes) -> None:
        """Sends at once (keepalives come here directly). Raises ``ClientLeft``."""
        assert self._response is not None
        self._sha.update(data)
        self._sent += len(data)
        self._wrote = time.monotonic()
        try:
            async with asyncio.timeout(self._write_s):
                await self._response.write(data)
        except (ConnectionError, TimeoutError) as error:
            raise ClientLeft from error
