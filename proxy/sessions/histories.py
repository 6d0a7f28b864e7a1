"""The histories that sessions have sent, so that the next request of each is read where it is new.

Owns which history a request goes on with (all but its last few turns are the request's too; else it is kept beside the
one it forks from), and how much is kept: the texts of the turns of the sessions that called last, within a limit. A
session may have several (its agents take turns); one that is forgotten is only read anew. Works on the bodies of every
wire format.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from forge.proxy.sessions.turns import Asked, Known, again, read
from forge.storage.messages import REPLACED

KEPT_BYTES: Final = 64 << 20
"""Of all sessions together."""
OF_ONE: Final = 4
"""Histories of one session; more are forgotten, the one used longest ago first."""


class Histories:
    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._sessions: OrderedDict[str, list[Known]] = OrderedDict()
        """The one used last is the last, of sessions and of each one's histories."""
        self._sizes: dict[str, int] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def read(self, session_id: str, body: bytes) -> Asked:
        """Raises one of ``UNREADABLE`` where it is no JSON object."""
        held = self._sessions.get(session_id)
        if held is None:
            held = self._sessions[session_id] = []
        else:
            self._sessions.move_to_end(session_id)
        known, found = _nearest(held, body)
        asked = again(body, known, found) or read(body, known)
        self._account(session_id, len(held) * len(body))
        return asked

    def _account(self, session_id: str, size: int) -> None:
        self._size += size - self._sizes.get(session_id, 0)
        self._sizes[session_id] = size
        while self._size > self._limit:
            oldest, _ = self._sessions.popitem(last=False)
            self._size -= self._sizes.pop(oldest)


def _nearest(held: list[Known], body: bytes) -> tuple[Known, tuple[int, int, bool]]:
    """The history that the body goes on with, or another that begins like the nearest one; and how far."""
    best, most = held[-1] if held else None, (0, 0, False)
    for known in reversed(held):
        around = known.around
        if around is None or not body.startswith(around.head):
            continue
        found = known.walk(body, len(around.head))
        if found[0] > most[0]:
            best, most = known, found
        if found[0] + REPLACED >= len(known.turns):
            break
    if best is not None and most[0] and most[0] + REPLACED >= len(best.turns):
        held.remove(best)
    else:
        best = best.fork() if best is not None else Known()
    held.append(best)
    del held[:-OF_ONE]
    return best, most
