"""What must be true before the dataset is made anew from the journal, and what a broken-off attempt leaves behind."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from forge.storage.checkpoint import Checkpoint, checkpoint_path
from forge.storage.dataset_calls import UNREADABLE
from forge.storage.errors import ForgeError, Unavailable
from forge.storage.files import TEMPORARY, temporary
from forge.storage.journal import Damage, JournalReader, journal_dir, segment_path, segments, writers
from forge.storage.journal_segment import read_head
from forge.storage.parts import PartPlace, part_place, parts_in, read_part, table_dir
from forge.storage.recipe import DEFAULT

log = logging.getLogger(__name__)

NAMED_MAX = 5
"""Missing things named in an error."""


def plan(data: Path) -> Checkpoint:
    """The checkpoint to start over from: every part there is stale until it is made again.

    Raises ``Unavailable``, naming what is missing, if the journal cannot give back all that the parts hold.
    """
    kept = {writer: _Kept.of(data, writer) for writer in writers(data)}
    missing = [name for writer in kept for name in _missing_segments(journal_dir(data, writer))]
    there = decoder_parts(data)
    damaged: list[str] = []
    for path, place in there.items():
        journal = kept.get(place.writer)
        if journal is None or not journal.reaches(place):
            missing.append(f"the frames of {path}")
        elif (hurt := journal.hurt(place)) and _is_readable(data, path):
            damaged.append(str(hurt))
    missing = list(dict.fromkeys(damaged)) + missing
    if missing:
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise Unavailable(
            f"the dataset in {data} cannot be made anew, the journal no longer holds: "
            f"{', '.join(missing[:NAMED_MAX])}{more}",
            "restore these files; next time keep more with --journal-keep",
        )
    if not kept:
        raise Unavailable(f"there is no journal in {data / 'journal'}", "give the --data directory of a forge proxy")
    return Checkpoint(stale=[str(path.relative_to(data)) for path in there], catalog_behind=True)


def decoder_parts(data: Path) -> dict[Path, PartPlace]:
    """Every part that the decoder has written; what else lies among them is left alone."""
    paths = [path for folder in _folders(data) for path in parts_in(folder)]
    places = {path: part_place(path) for path in paths}
    for path in (path for path, place in places.items() if place is None):
        log.warning("left alone, it is no part of ours: %s", path)
    return {path: place for path, place in places.items() if place is not None}


class LostFrames(ForgeError):
    """Frames of the journal are damaged."""


def require_whole(data: Path, damage: Iterable[Damage]) -> None:
    """Raises ``LostFrames`` if frames could not be read."""
    if lost := [str(each) for each in damage if not each.torn]:
        raise LostFrames(
            f"the journal of {data} is damaged, and what stood there is not in the dataset: {'; '.join(lost)}",
            "all else is decoded; restore these files from a copy, then: forge decode --rebuild",
        )


def remove_leftovers(data: Path) -> None:
    """Files that were being written when a decoder died. Sets of other recipes may have a living writer."""
    temporary(checkpoint_path(data)).unlink(missing_ok=True)
    for folder in _folders(data):
        for leftover in folder.glob(f"**/{TEMPORARY}"):
            leftover.unlink(missing_ok=True)


def _folders(data: Path) -> list[Path]:
    return [table_dir(data, "calls"), table_dir(data, "sessions"), table_dir(data, "samples", DEFAULT.name)]


def _missing_segments(directory: Path) -> list[str]:
    there = segments(directory)
    gone = sorted(set(range(1, there[-1])) - set(there)) if there else []
    return [str(segment_path(directory, segment)) for segment in gone]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What of a writer's journal can still be read."""

    first_boot: int
    """The earliest start whose frames it holds."""
    damage: list[Damage]
    """The last one may be a frame that is being written."""

    @classmethod
    def of(cls, data: Path, writer: int) -> _Kept:
        directory = journal_dir(data, writer)
        heads = (read_head(segment_path(directory, segment)) for segment in segments(directory))
        boot = next((head.boot for head in heads if head is not None), 1 << 62)
        reader = JournalReader(directory)
        try:
            while reader.read():
                pass
            return cls(boot, reader.damage + reader.rest)
        finally:
            reader.close()

    def reaches(self, place: PartPlace) -> bool:
        return self.first_boot <= place.generation

    def hurt(self, place: PartPlace) -> Damage | None:
        """What keeps a part from being made again as it is."""
        return next((d for d in self.damage if d.position < place.last and d.end > place.first), None)


def _is_readable(data: Path, path: Path) -> bool:
    try:
        read_part(path, path.relative_to(data).parts[0])
    except UNREADABLE:
        return False
    return True
