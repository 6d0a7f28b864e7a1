"""Segments that have been decoded, on their way back to the writer.

Bytes that the page cache holds already are written over at twice the speed of new ones, and a flush of them changes no
metadata: the biggest single gain where prompts are long. A frame carries its segment's number, so what a spare still
holds of its earlier life never reads as valid. Knows no frames.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from forge.storage import crash
from forge.storage.journal_segment import segment_path

SPARES_MAX: Final = 2
"""Per writer; more are deleted. A writer needs one while the decoder gives the next back."""
_PREFIX: Final = "spare-"


def give_back(directory: Path, segment: int) -> None:
    """A segment is needed no more: to be written over, or deleted where enough are."""
    path = segment_path(directory, segment)
    if len(spares(directory)) < SPARES_MAX:
        path.rename(directory / f"{_PREFIX}{path.stem}")
    else:
        path.unlink()


def take(directory: Path, segment: int, begin: Callable[[int], object]) -> int:
    """Opens the file of a new segment for writing, a spare where there is one; ``begin`` writes its first bytes.

    It has its name only when these are there, so a segment is never seen without them. Raises ``OSError``; nothing is
    left behind then.
    """
    path = segment_path(directory, segment)
    there = spares(directory)
    made = there[0] if there else directory / f"{_PREFIX}new"
    fd = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        begin(fd)
        crash.point("segment-head")
        os.rename(made, path)
    except OSError:
        os.close(fd)
        if not there:
            made.unlink(missing_ok=True)
        raise
    return fd


def spares(directory: Path) -> list[Path]:
    """Those that are there, the oldest first."""
    return sorted(directory.glob(f"{_PREFIX}{'[0-9]' * 8}"))
