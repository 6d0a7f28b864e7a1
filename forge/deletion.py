"""Which runs are to be deleted, and what that is, for people: a table before, and the same after.

Owns the choice by name or by age and the table; what belongs to a run and how it goes is ``forge.storage.deletion``'s.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.filesize import decimal
from rich.table import Table

from forge.storage.dataset import Dataset, existing
from forge.storage.deletion import Belongings, Deletion, deleting
from forge.storage.errors import BadInput

HARNESS: Final = "harness"
"""Beside the dataset: what harnesses printed and kept, a folder per run."""
UNITS: Final = {"h": 3600, "d": 86400, "w": 7 * 86400}


def seconds(option: str, text: str) -> float:
    """``12h``, ``30d``, ``8w``."""
    found = re.fullmatch(r"(\d+)([hdw])", text.strip().lower())
    if found is None:
        raise BadInput(f"{option}: {text!r} is no age", "write it as 12h, 30d or 8w")
    return float(found[1]) * UNITS[found[2]]


def chosen(deletion: Deletion, data: Path, run: str | None, older_than_s: float | None) -> list[Belongings]:
    """The run of that name, or all whose last sign of life is older; live ones too, so that they can be named."""
    if run is not None:
        return deletion.belongings([run])
    assert older_than_s is not None
    before_us = (time.time() - older_than_s) * 1e6
    return [each for each in deletion.belongings(Dataset(data).runs()) if each.last_us < before_us]


def delete(
    data: Path, run: str | None, older_than_s: float | None, *, catalog_url: str | None, really: bool
) -> tuple[list[Belongings], Table]:
    """What was, or without ``really`` would be, deleted. Raises ``Unavailable`` for a live run that was named."""
    existing(data)
    with deleting(data, data / HARNESS) as deletion:
        found = chosen(deletion, data, run, older_than_s)
        going = [each for each in found if not each.live or run is not None]
        kept = sorted(set(Dataset(data).runs()) - {each.run_id for each in going})
        for index, each in enumerate(going):
            each.media = deletion.only_its_media(each, [*kept, *(later.run_id for later in going[index + 1 :])])
        table = _table(found)
        for each in going if really else ():
            deletion.delete(each, catalog_url)
    return going, table


def _table(found: Sequence[Belongings]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "sessions", "files", "frames", "media", "size", ""):
        table.add_column(name, justify="left" if name in ("run", "") else "right")
    for each in found:
        files = sum(1 for folder in each.folders for path in folder.rglob("*") if path.is_file())
        frames = sum(map(len, each.frames.places.values()))
        counts = (str(len(each.sessions)), str(files), str(frames), str(len(each.media)), decimal(each.bytes))
        table.add_row(each.run_id, *counts, f"live, stays: {each.live}" if each.live else "")
    return table
