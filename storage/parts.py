"""Parts: the Parquet files of the dataset, how they are named, written and read.

A part appears by rename, whole; its name says which frames of which writer it holds, so that writing it again gives
the same file. One schema in every file, byte stream split and zstd for token columns, row groups bounded in bytes,
page checksums and a seal. Knows nothing of sessions or chains.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from forge.storage import seal
from forge.storage.columns import IDS, INTS, LOG_PROBS, NAME, SCHEMA_VERSION, TABLES, TEXT, Column, schema
from forge.storage.errors import BadInput
from forge.storage.files import write_whole
from forge.storage.journal_segment import Position
from forge.storage.migrations import upgrade
from forge.storage.rows import Row, size, to_batch

log = logging.getLogger(__name__)

ROW_GROUP_BYTES: Final = 64 << 20
"""Target size of a row group in memory: readers hold one at a time."""
ZSTD_LEVEL: Final = 3
ZSTD_LEVEL_TOKENS: Final = 1
"""Bytes of numbers hold hardly a repetition: to look for more of them takes time and makes the files no smaller."""
STATISTICS: Final = ("call_id", "session_id", "seq", "start_time", "open_time", "revision", "group_id")
"""Columns whose bounds help a reader skip; of the others they would be half of a small part."""
_PREFIX: Final = "run_id="
_NAME: Final = re.compile(r"part-(\d+)-(\d+)-(\d+)_(\d+)-(\d+)_(\d+)\.parquet")
_VERSION: Final = b"forge.schema_version"
_NUMBERS: Final = (IDS, LOG_PROBS, INTS)
_SEALED_SINCE: Final = 2
"""The first schema version whose files all have a seal."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A file that could not be read, and why."""

    path: Path
    reason: str

    def told(self) -> str:
        """Both; a reason may name the file already."""
        return self.reason if str(self.path) in self.reason else f"{self.path}: {self.reason}"


def table_dir(data: Path, table: str, recipe: str | None = None) -> Path:
    """Where the runs of ``calls``, ``sessions``, or ``samples`` of a recipe are."""
    return data / table if recipe is None else data / table / f"set={quote(recipe, safe='')}"


def run_dir(folder: Path, run_id: str) -> Path:
    return folder / f"{_PREFIX}{quote(run_id, safe='')}"


def run_of(path: Path) -> str:
    """The run whose folder holds a part."""
    return unquote(path.parent.name.removeprefix(_PREFIX))


def runs_in(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(unquote(p.name.removeprefix(_PREFIX)) for p in folder.iterdir() if p.name.startswith(_PREFIX))


def parts_in(folder: Path, run_id: str | None = None) -> list[Path]:
    """The parts of one run or of all, in the order their frames were written."""
    runs = [run_id] if run_id is not None else runs_in(folder)
    return [path for run in runs for path in _parts(run_dir(folder, run))]


def _parts(folder: Path) -> list[Path]:
    """Files alone: a link could lead out of the data directory."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(".parquet") and e.is_file(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sorted(names)]


class PartPlace(NamedTuple):
    """What a part's name says."""

    writer: int
    generation: int
    first: Position
    last: Position


def part_place(path: Path) -> PartPlace | None:
    """None for a file that the decoder did not name."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    writer, generation, *places = map(int, found.groups())
    return PartPlace(writer, generation, Position(*places[:2]), Position(*places[2:]))


def part_name(writer: int, generation: int, first: Position, last: Position) -> str:
    """``generation`` is the boot that wrote the frames; names sort in the order of the frames."""
    places = "-".join(f"{p.segment:08d}_{p.offset:010d}" for p in (first, last))
    return f"part-{writer:02d}-{generation:06d}-{places}.parquet"


def writer_of(path: Path) -> int | None:
    """Whose frames a part holds; None where its name does not say."""
    _, _, after = path.name.partition("part-")
    number, _, _ = after.partition("-")
    return int(number) if number.isdecimal() else None


def write_part(
    path: Path, table: str, rows: Sequence[Row], *, metadata: dict[str, str] | None = None, flush_name: bool = True
) -> None:
    """Writes the rows, in order, into a file that appears whole. ``flush_name``: as of ``write_whole``."""
    full = schema(table)
    if metadata:
        full = full.with_metadata({**full.metadata, **{k.encode(): v.encode() for k, v in metadata.items()}})

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(
            temporary,
            full,
            compression="zstd",
            compression_level=_levels(table),
            use_dictionary=_dictionary_columns(table),
            column_encoding=_encodings(table),
            write_page_checksum=True,
            write_statistics=[c.name for c in TABLES[table] if c.name in STATISTICS],
        ) as writer:
            for group in _row_groups(rows):
                batch = to_batch(table, group)
                writer.write_table(pa.Table.from_batches([batch], schema=full), row_group_size=len(group))
        seal.seal(temporary)

    write_whole(path, write, crash_name=table, flush_name=flush_name)


def read_part(path: Path, table: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The rows of a part, as of the current schema. Raises ``BadInput`` on a newer schema, a foreign file or damage;
    ``OSError`` or ``pa.ArrowException`` on damage that no seal shows."""
    wanted = [c.name for c in TABLES[table]] if columns is None else list(columns)
    sealed = seal.check(path, owner=_VERSION, body=columns is None)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            version = _version(path, file, sealed)
            if version == SCHEMA_VERSION:
                return file.read(columns=wanted, use_threads=False).select(wanted)
            # A column may be made of others, so an older file is read whole.
            return upgrade(table, file.read(use_threads=False), version).select(wanted)
    except (UnicodeError, KeyError) as error:
        raise BadInput(
            f"{path} is damaged: {error}", "forge decode --rebuild makes it anew from the journal"
        ) from error


def count_rows(path: Path) -> int:
    """Rows of a part, from its footer."""
    seal.check(path, owner=_VERSION, body=False)
    with pq.ParquetFile(path) as file:
        return int(file.metadata.num_rows)


def _version(path: Path, file: pq.ParquetFile, sealed: bool) -> int:
    text = (file.schema_arrow.metadata or {}).get(_VERSION, b"").decode()
    if not text.isdigit():
        raise BadInput(f"{path} was not written by forge: it has no schema version", "move it out of the dataset")
    if int(text) > SCHEMA_VERSION:
        raise BadInput(
            f"{path} has schema version {text}; this forge reads up to {SCHEMA_VERSION}",
            "read it with the forge that wrote it, or a newer one",
        )
    if not sealed and int(text) >= _SEALED_SINCE:
        raise BadInput(f"{path} has no seal: something else wrote it again", "forge decode --rebuild makes it anew")
    return int(text)


def _row_groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Slices of at most ``ROW_GROUP_BYTES``, or of one row: no column of a group comes near the 2 GB at which readers
    and Arrow's own strings end, however unequal the rows are, and a file has few groups. None if there is no row: an
    empty group is one that Hugging Face datasets refuses."""
    start, held = 0, 0
    for index, row in enumerate(rows):
        bytes_ = size(row)
        if index > start and held + bytes_ > ROW_GROUP_BYTES:
            yield rows[start:index]
            start, held = index, 0
        held += bytes_
    if rows:
        yield rows[start:]


def _encodings(table: str) -> dict[str, str]:
    """Ids too are split by byte: their high bytes are skewed, which beats a dictionary by a sixth."""
    return {_leaf(c): "BYTE_STREAM_SPLIT" for c in TABLES[table] if c.type in _NUMBERS}


def _levels(table: str) -> dict[str, int]:
    return {_leaf(c): ZSTD_LEVEL_TOKENS if c.type in _NUMBERS else ZSTD_LEVEL for c in TABLES[table]}


def _leaf(column: Column) -> str:
    """How Parquet names what holds the column's values."""
    return f"{column.name}.list.element" if pa.types.is_large_list(column.type) else column.name


def _dictionary_columns(table: str) -> list[str]:
    return [c.name for c in TABLES[table] if c.type in (TEXT, NAME, pa.int32(), pa.int64())]
