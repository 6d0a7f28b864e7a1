"""Which worker a session lives in: a pure function of its id, the same in every process while the parent lives.

The one non-obvious fact: a data directory remembers sessions of starts that had another number of workers. They stay
where their frames are, in that worker's journal, and are *strays* from the rule; ids are minted so that a new session
is none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from forge.proxy.ids import IdSource
from forge.proxy.sessions.archive import Forgotten

KEYLESS: Final = 0
"""The worker of requests without a key of ours: who tells sessions by their histories must see all of them."""


class Homes:
    """Of ``count`` workers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._strays: list[tuple[int, Forgotten]] = []

    def of(self, session_id: str) -> int:
        """The worker of a session, whether there is such a session or not."""
        for number, known in self._strays:
            if session_id in known:
                return number
        return self._by_rule(session_id)

    def _by_rule(self, session_id: str) -> int:
        return zlib.crc32(session_id.encode()) % self.count

    def strays(self, number: int, session_ids: Iterable[str]) -> bytes:
        """Those of a worker's sessions that live there against the rule, as others ``learn`` them; empty if none do."""
        found = [session_id for session_id in session_ids if self._by_rule(session_id) != number]
        if not found:
            return b""
        names = Forgotten()
        for session_id in found:
            names.add(session_id)
        return bytes(names.bits)

    def learn(self, strays: Sequence[bytes]) -> None:
        """``strays``: of each worker. Where one name passes for another, all processes are wrong alike."""
        self._strays = [(number, Forgotten(bits)) for number, bits in enumerate(strays) if bits]


class OwnIds(IdSource):
    """Ids of sessions that live in one worker."""

    def __init__(self, homes: Homes, number: int) -> None:
        super().__init__()
        self._homes = homes
        self._number = number

    def next(self) -> str:
        while self._homes.of(found := super().next()) != self._number:
            pass
        return found
