"""How far the decoder is: one small file, replaced by rename after each interval.

For each writer the place up to which everything is in parts, and the place of the oldest call still open there; for
each session that is not finished the parts that hold its calls. Nothing in it is more than a mark in the journal:
the parts of a lost checkpoint are made again, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from forge.storage.errors import BadInput
from forge.storage.files import held, write_whole
from forge.storage.journal_segment import Position
from forge.storage.records import Call

VERSION: Final = 1
SESSION_PARTS_MAX: Final = 512
"""A session spread over more parts than this is looked for in all parts of its run."""


class Mark(msgspec.Struct, kw_only=True):
    """One writer's."""

    position: tuple[int, int] = (0, 0)
    """Where the next interval begins."""
    oldest: tuple[int, int] = (0, 0)
    """Where reading must begin to know the calls open at ``position``."""
    boot: int = 0
    """The boot at ``position``."""
    policies: dict[str, tuple[int, str | None, str | None]] = {}
    """Replica to the version, lineage and digest it served at ``position``."""


class Counts(msgspec.Struct, kw_only=True):
    """Of all rows of ``calls`` since the data directory, or its rebuild, began. They move with the checkpoint: each row
    is counted once."""

    rows: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    untrainable: dict[str, int] = {}
    """Rows that may not reach a gradient, by reason."""

    def add(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self.rows += 1
            self.prompt_tokens += len(call.prompt_ids)
            self.output_tokens += len(call.output_ids)
            if call.untrainable_reason is not None:
                self.untrainable[call.untrainable_reason] = self.untrainable.get(call.untrainable_reason, 0) + 1


class Progress(msgspec.Struct, kw_only=True):
    """The part of a checkpoint that tells how far the decoder is: small, whatever is live."""

    writers: dict[str, Mark] = {}
    counts: Counts = msgspec.field(default_factory=Counts)

    def mark(self, writer: int) -> Mark:
        return self.writers.get(f"{writer:02d}", Mark())


class Checkpoint(msgspec.Struct, kw_only=True):
    version: int = VERSION
    writers: dict[str, Mark] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    live: dict[str, list[str]] = {}
    """Session id to the parts of ``calls`` that hold it, as paths below the data directory; from the frame that
    opens a session to the one that finishes it."""
    catalog_behind: bool = False
    """The catalog missed something and must be made anew."""
    stale: list[str] = []
    """Parts from before a rebuild that it has not made again yet; deleted when it has caught up."""

    def mark(self, writer: int) -> Mark:
        return self.writers.setdefault(f"{writer:02d}", Mark())

    def note_part(self, session_id: str, part: str) -> None:
        """A part holds calls of the session; nothing is noted of sessions that are finished."""
        parts = self.live.get(session_id)
        if parts is not None and part not in parts and len(parts) <= SESSION_PARTS_MAX:
            parts.append(part)

    def parts_of(self, session_id: str) -> list[str] | None:
        """None: not known, look in all parts of the run."""
        parts = self.live.get(session_id)
        return None if parts is None or len(parts) > SESSION_PARTS_MAX else parts


def checkpoint_path(data: Path) -> Path:
    return data / "journal" / "decoded.json"


DECODER: Final = "decoder"
"""Who holds the turn when it is the decoder."""


def turn_path(data: Path) -> Path:
    return data / "journal" / "turn.lock"


def turn(data: Path, who: str = "") -> AbstractContextManager[None]:
    """Who changes parts, segments or the checkpoint holds this meanwhile: the decoder for a step, a deletion for all of
    its work."""
    return held(turn_path(data), who)


def stamp(data: Path) -> tuple[int, int]:
    """Another one means that somebody else has saved a checkpoint."""
    try:
        status = checkpoint_path(data).stat()
    except FileNotFoundError:
        return (0, 0)
    return status.st_ino, status.st_mtime_ns


def load(data: Path) -> Checkpoint:
    path = checkpoint_path(data)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    try:
        found = msgspec.json.decode(text, type=Checkpoint)
    except msgspec.DecodeError as error:
        raise BadInput(f"{path} cannot be read: {error}", "run forge decode --rebuild") from error
    if found.version > VERSION:
        raise BadInput(f"{path} has version {found.version}; this forge reads {VERSION}", "use a newer forge")
    return found


def progress(data: Path) -> Progress:
    """Nothing where there is no checkpoint, or none that can be read: the decoder says so itself."""
    try:
        return msgspec.json.decode(checkpoint_path(data).read_bytes(), type=Progress)
    except (OSError, msgspec.DecodeError):
        return Progress()


def save(data: Path, checkpoint: Checkpoint) -> None:
    text = msgspec.json.encode(checkpoint)
    write_whole(checkpoint_path(data), lambda path: path.write_bytes(text), crash_name="checkpoint")


def decoded(data: Path, writer: int) -> Position:
    """Everything of the writer before this place is in parts."""
    return Position(*load(data).mark(writer).position)
