"""What may reach the client, and when: holds pieces back until the journal has what they rest on.

A piece with ``Hold.DATA`` goes out after every engine byte so far is written; from the first ``Hold.CLOSE`` on
everything waits for ``release``, which the call makes once its ``close`` frame stands. Counts and hashes what goes
out, with what is held: the ``close`` frame names both before the last pieces leave.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Final

from forge.proxy.dialects.base import Hold, Piece
from forge.proxy.door.outlet import Gone
from forge.proxy.door.request import Request
from forge.proxy.recording.recorder import Recording

ClientLeft = Gone
HASHED_AT_ONCE: Final = 32
"""Pieces: most are small, and each time that a hash is fed costs too."""


class Delivery:
    """Raises ``ClientLeft`` whenever the client takes nothing any more."""

    def __init__(self, request: Request, recording: Recording) -> None:
        self._outlet = request.outlet
        self._recording = recording
        self._held: list[bytes] = []
        self._sent = 0
        self.first_us: int | None = None
        """When the first piece had gone out, in the recorder's time."""
        self._wrote = time.monotonic()
        self._sha = hashlib.sha256()
        """Of what went out, but for the last pieces."""
        self._unhashed: list[bytes] = []

    def total(self) -> tuple[int, str]:
        """Bytes that went out or are held, and their sha256."""
        held = b"".join(self._held)
        if not self._sent:
            return len(held), hashlib.sha256(held).hexdigest()
        self._hash()
        sha = self._sha.copy()
        sha.update(held)
        return self._sent + len(held), sha.hexdigest()

    @property
    def silent_s(self) -> float:
        """Since the client last got anything."""
        return time.monotonic() - self._wrote

    @property
    def started(self) -> bool:
        return self._outlet.begun

    @property
    def begun(self) -> bool:
        """A piece of the answer went out."""
        return self.first_us is not None

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Sends the head of a stream."""
        self._outlet.begin(status, headers, None)
        self._wrote = time.monotonic()

    async def give(self, pieces: Sequence[Piece]) -> None:
        """Raises ``JournalFull`` where a piece would have to go out unrecorded."""
        for piece in pieces:
            if piece.hold is Hold.DATA and not self._held:
                recorded = self._recording.flush()
                await self._recording.recorder.journal.durable(recorded)
            if self.put((piece,)):
                await self.taken()

    def put(self, pieces: Sequence[Piece]) -> bool:
        """The same at once, where no piece waits for the disk. True: the client has to take some (``taken``) before
        more is given."""
        full = False
        for piece in pieces:
            data = piece.data
            if self._held or piece.hold is Hold.CLOSE:
                self._held.append(data)
                continue
            if piece.hold is Hold.DATA:
                self._recording.flush()
            self._note(data)
            full = self._outlet.write(data)
            if self.first_us is None:
                self.first_us = self._recording.recorder.now()
        return full

    async def taken(self) -> None:
        """Waits while too much is unsent."""
        await self._outlet.taken()

    def hold(self, data: bytes) -> None:
        self._held.append(data)

    def replace_held(self, data: bytes) -> None:
        """What is held will never be sent; ``data`` ends the answer."""
        self._held = [data]

    async def answer(self, status: int, headers: Mapping[str, str]) -> None:
        """The same, of an answer of which nothing went out yet: all of it is held."""
        held, self._held = self._held, []
        self._outlet.answer(status, held[0] if len(held) == 1 else b"".join(held), headers)
        if self._outlet.full:
            await self._outlet.taken()

    async def release(self) -> None:
        """The ``close`` frame is written: everything held goes out, and the answer ends."""
        held, self._held = self._held, []
        await self._outlet.end(held)

    def drop_held(self) -> None:
        """What is held will never be sent, and nothing in its place."""
        self._held = []

    def cut(self) -> None:
        """The client's connection breaks off, as the engine's did: no end of the body comes."""
        self._outlet.cut()

    async def write(self, data: bytes) -> None:
        """Sends at once (keepalives come here directly)."""
        self._note(data)
        if self._outlet.write(data):
            await self._outlet.taken()

    def _note(self, data: bytes) -> None:
        """It goes out. Hashed with what follows it, as most pieces are small."""
        self._unhashed.append(data)
        self._sent += len(data)
        self._wrote = time.monotonic()
        if len(self._unhashed) >= HASHED_AT_ONCE:
            self._hash()

    def _hash(self) -> None:
        self._sha.update(b"".join(self._unhashed))
        self._unhashed = []
