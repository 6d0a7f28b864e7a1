"""What an export is: a format with a name, what it needs of a row, and one file that appears by rename."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from forge.adapters.trainers.rows import Needs, Row
from forge.storage.media import MediaStore


class Arguments(StrEnum):
    """How tool calls' arguments stand in text exports."""

    OBJECT = "object"
    """Parsed: chat templates of most models want a mapping, and write a string as a string within a string."""
    STRING = "string"
    """JSON text, as on the wire: one type in every row, which loaders that infer a schema want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    arguments: Arguments = Arguments.OBJECT
    media: MediaStore
    """Where what the rows refer to is."""


class Trainer(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Needs: ...

    @property
    def suffix(self) -> str:
        """Of its file, where the user names a folder."""

    @property
    def caution(self) -> str | None:
        """What its users are told, every time."""

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        """Writes the file; gives what the format itself had to leave out, by reason."""
