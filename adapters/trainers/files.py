"""Files that exports are written into: Parquet and JSON lines, a bounded part in memory, there whole or not at all.

Knows no trainer; ``PLACE`` are the columns that every one of them has room for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from forge.storage.files import write_whole

IDS: Final = pa.list_(pa.int32())
MASK: Final = pa.list_(pa.int8())
FLOATS: Final = pa.list_(pa.float32())

PLACE: Final[Mapping[str, pa.DataType]] = {
    "sample_id": pa.string(),
    "run_id": pa.string(),
    "session_id": pa.string(),
    "task_id": pa.string(),
    "group_id": pa.string(),
    "rollout_index": pa.int32(),
    "row_index": pa.int32(),
    "row_count": pa.int32(),
    "is_last": pa.bool_(),
    "session_trainable_tokens": pa.int64(),
    "weight": pa.float64(),
    "policy_version_min": pa.int64(),
    "policy_version_max": pa.int64(),
}
"""Whose row it is and what it weighs, in every Parquet export."""
BATCH_TOKENS: Final = 1 << 22
"""Ids of a row group: readers hold one at a time, and so do we."""


def write_table(path: Path, columns: Mapping[str, pa.DataType], rows: Iterable[tuple[int, dict[str, Any]]]) -> None:
    """``rows``: tokens of a row, and its values by column."""
    schema = pa.schema([pa.field(name, kind) for name, kind in columns.items()])

    def write(unfinished: Path) -> None:
        with pq.ParquetWriter(unfinished, schema, compression="zstd", write_page_checksum=True) as writer:
            held: list[dict[str, Any]] = []
            tokens = 0
            for size, row in rows:
                held.append(row)
                tokens += size
                if tokens >= BATCH_TOKENS:
                    writer.write_table(_table(schema, held))
                    held, tokens = [], 0
            writer.write_table(_table(schema, held))

    write_whole(path, write, crash_name="export")


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """One JSON object a line."""

    def write(unfinished: Path) -> None:
        with unfinished.open("wb") as file:
            for row in rows:
                file.write(msgspec.json.encode(row) + b"\n")

    write_whole(path, write, crash_name="export")


def _table(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_arrays(
        [pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema
    )
