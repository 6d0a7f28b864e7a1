"""Reads ``calls`` parts back as whole calls: follows chains over parts, within a bound of memory.

Rows come in the order they were written, so a parent is always behind us. What is remembered of sessions is capped;
a session that fell out is read again from the parts that hold it. A file that cannot be read is named and skipped,
with the rows that build on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from forge.storage.delta import DanglingParent, Delta, Unfolder, WrongPrompt
from forge.storage.errors import BadInput, ForgeError
from forge.storage.parts import Damaged, read_part
from forge.storage.records import Call
from forge.storage.rows import deltas

log = logging.getLogger(__name__)

UNREADABLE: Final = (OSError, pa.ArrowException, BadInput)
"""What reading a part raises where it is corrupt, foreign, or of a newer schema."""
REMEMBERED_BYTES: Final = 512 << 20
"""Whole prompts kept for the rows to come."""


class BrokenDataset(ForgeError):
    """Rows contradict each other: nothing that a damaged file could explain."""


class CallReader:
    """Iterates over the calls of ``paths`` (one run's parts, in order), or of one session in them."""

    def __init__(
        self,
        paths: Sequence[Path],
        damaged: list[Damaged],
        *,
        session_id: str | None = None,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self._paths = paths
        self._damaged = damaged
        self._session_id = session_id
        self._limit = remembered_bytes
        self._unfolders: dict[str, Unfolder] = {}
        self._seen_in: dict[str, list[Path]] = {}

    def __iter__(self) -> Iterator[Call]:
        for path in self._paths:
            seen: set[str] = set()
            for row in self._rows(path):
                session = row.call.session_id
                call = self._whole(self._unfolder(session, fresh=session not in seen), row, path)
                seen.add(session)
                if call is not None:
                    yield call
            for session in seen:
                self._seen_in.setdefault(session, []).append(path)
            self._forget()

    def _rows(self, path: Path) -> list[Delta]:
        try:
            if self._session_id is None:
                return deltas(read_part(path, "calls"))
            names = read_part(path, "calls", ["session_id"]).column("session_id")
            mine = pc.equal(names, self._session_id)
            if not pc.any(mine).as_py():
                return []
            return deltas(read_part(path, "calls").filter(mine))
        except UNREADABLE as error:
            note_damage(self._damaged, path, str(error))
            return []

    def _unfolder(self, session: str, *, fresh: bool) -> Unfolder:
        """The session's memory, made the most recent one; read again where it was forgotten."""
        unfolder = self._unfolders.pop(session, None)
        if unfolder is None:
            unfolder = Unfolder()
            if fresh and session in self._seen_in:
                again = CallReader(self._seen_in[session], [], session_id=session)
                for _ in again:
                    pass
                unfolder = again._unfolders.get(session, unfolder)
        self._unfolders[session] = unfolder
        return unfolder

    def _whole(self, unfolder: Unfolder, row: Delta, path: Path) -> Call | None:
        call = row.call
        try:
            return unfolder.add(row)
        except DanglingParent as error:
            what = f"call {call.call_id} (choice {call.choice}) in {path} builds on call {error}, which is not there"
            if self._damaged:
                note_damage(self._damaged, path, f"{what}; a damaged file may have held it")
                return None
            hint = f"forge decode --rebuild makes {path.name} and all others anew from the journal"
            raise BrokenDataset(what, hint) from error
        except WrongPrompt as error:
            raise BrokenDataset(
                f"call {call.call_id} (choice {call.choice}) in {path}: its prompt of {row.prompt_len} ids with hash "
                f"{row.prompt_hash} was rebuilt as {error}",
                "forge decode --rebuild makes the dataset anew from the journal",
            ) from error

    def _forget(self) -> None:
        """Drops the sessions not seen for longest. Only between parts: a part is read with one memory."""
        held = sum(unfolder.size for unfolder in self._unfolders.values())
        for session in list(self._unfolders):
            if held <= self._limit:
                return
            held -= self._unfolders.pop(session).size


def note_damage(damaged: list[Damaged], path: Path, reason: str) -> None:
    log.warning("skipped in %s: %s", path, reason)
    damaged.append(Damaged(path, reason))
