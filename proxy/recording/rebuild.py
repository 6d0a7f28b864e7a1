"""What must be true before the dataset is made anew from the journal, and what a broken-off attempt leaves behind."""

from __future__ import annotations

from pathlib import Path

from forge.storage.checkpoint import Checkpoint, checkpoint_path
from forge.storage.errors import Unavailable
from forge.storage.files import TEMPORARY, temporary
from forge.storage.journal import journal_dir, segment_path, segments, writers
from forge.storage.journal_segment import read_head
from forge.storage.parts import parts_in, table_dir
from forge.storage.recipe import DEFAULT

NAMED_MAX = 5
"""Missing things named in an error."""


def plan(data: Path) -> Checkpoint:
    """The checkpoint to start over from: every part there is stale until it is made again.

    Raises ``Unavailable``, naming what is missing, if the journal cannot give back all that the parts hold.
    """
    first_boot = {writer: _first_boot(data, writer) for writer in writers(data)}
    missing = [name for writer in first_boot for name in _missing_segments(journal_dir(data, writer))]
    there = decoder_parts(data)
    for path in there:
        _, writer, boot, *_ = path.stem.split("-")
        if int(boot) < first_boot.get(int(writer), 1 << 62):
            missing.append(f"the frames of {path}")
    if missing:
        more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
        raise Unavailable(
            f"the dataset in {data} cannot be made anew, the journal no longer holds: "
            f"{', '.join(missing[:NAMED_MAX])}{more}",
            "restore these files; next time keep more with --journal-keep",
        )
    if not first_boot:
        raise Unavailable(f"there is no journal in {data / 'journal'}", "give the --data directory of a forge proxy")
    return Checkpoint(stale=[str(path.relative_to(data)) for path in there], catalog_behind=True)


def decoder_parts(data: Path) -> list[Path]:
    """Every part that the decoder has written."""
    folders = _folders(data)
    return [path for folder in folders for path in parts_in(folder)]


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


def _first_boot(data: Path, writer: int) -> int:
    """The earliest start whose frames the writer's journal holds."""
    directory = journal_dir(data, writer)
    heads = (read_head(segment_path(directory, segment)) for segment in segments(directory))
    return next((head.boot for head in heads if head is not None), 1 << 62)
