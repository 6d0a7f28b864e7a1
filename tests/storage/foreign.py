"""Reads a dataset with a library that nobody here wrote: ``python foreign.py LIBRARY DATA``.

Answers each line that comes on stdin: ``tables`` with the cells of every table, ``lengths`` with how many prompt ids
each call holds. It runs in an environment without forge, so it imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GLOBS = {"calls": "calls/*/*.parquet", "sessions": "sessions/*/*.parquet", "samples": "samples/set=default/*/*.parquet"}
_NAMES = {
    "calls": "call_id run_id choice messages tools response media status prompt_suffix_ids output_ids output_log_probs "
    "prompt_log_probs request_raw trainable",
    "sessions": "session_id run_id revision reward labels status",
    "samples": "sample_id run_id prompt_ids response_ids response_mask rollout_log_probs media turn_call_ids reward "
    "tools messages",
}
COLUMNS = {table: names.split() for table, names in _NAMES.items()}


def pyarrow(data: Path, table: str) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(data / GLOBS[table].split("/*/")[0], columns=COLUMNS[table]).to_pylist()
    return rows


def duckdb(data: Path, table: str) -> list[dict[str, Any]]:
    import duckdb as db

    with db.connect() as connection:
        found = connection.execute(f"SELECT {', '.join(COLUMNS[table])} FROM '{data / GLOBS[table]}'")
        return [dict(zip(COLUMNS[table], row, strict=True)) for row in found.fetchall()]


def polars(data: Path, table: str) -> list[dict[str, Any]]:
    import polars as pl

    frame = pl.scan_parquet(str(data / GLOBS[table]), hive_partitioning=False, missing_columns="insert")
    return frame.select(COLUMNS[table]).collect().to_dicts()


def pandas(data: Path, table: str) -> list[dict[str, Any]]:
    import pandas as pd

    folder = data / GLOBS[table].split("/*/")[0]
    frame = pd.read_parquet(folder, columns=COLUMNS[table])
    made: list[dict[str, Any]] = frame.to_dict("records")
    return made


def datasets(data: Path, table: str) -> list[dict[str, Any]]:
    import datasets as hf

    files = sorted(str(path) for path in data.glob(GLOBS[table]))
    rows = hf.Dataset.from_parquet(files, columns=COLUMNS[table], cache_dir=os.environ["FOREIGN_CACHE"])
    return [dict(row) for row in rows]


def ray(data: Path, table: str) -> list[dict[str, Any]]:
    import ray
    import ray.data

    if not ray.is_initialized():
        ray.init(num_cpus=2, object_store_memory=200 << 20, include_dashboard=False, log_to_driver=False)
    folder = str(data / GLOBS[table].split("/*/")[0])
    rows = ray.data.read_parquet(folder, columns=COLUMNS[table], partitioning=None)
    return [dict(row) for row in rows.take_all()]


def daft(data: Path, table: str) -> list[dict[str, Any]]:
    import daft

    frame = daft.read_parquet(str(data / GLOBS[table]))
    made: list[dict[str, Any]] = frame.select(*COLUMNS[table]).to_pylist()
    return made


READERS: dict[str, Callable[[Path, str], list[dict[str, Any]]]] = {
    "pyarrow": pyarrow,
    "duckdb": duckdb,
    "polars": polars,
    "pandas": pandas,
    "datasets": datasets,
    "ray": ray,
    "daft": daft,
}


def plain(value: Any) -> Any:
    """A cell as JSON: every kind of list is a list, every kind of nothing is null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return None if value is None or value != value else value


def plain_rows(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the order of their keys."""
    made = [{cell: plain(row[cell]) for cell in COLUMNS[name]} for row in rows]
    return sorted(made, key=lambda row: json.dumps([row[cell] for cell in COLUMNS[name][:3]]))


def answer(library: str, data: Path, what: str) -> dict[str, Any]:
    def read(name: str) -> list[dict[str, Any]]:
        # Every library says in its own way that a glob has no file.
        return READERS[library](data, name) if any(data.glob(GLOBS[name])) else []

    if what == "lengths":
        return {row["call_id"]: len(row["prompt_suffix_ids"]) for row in read("calls")}
    return {name: plain_rows(name, read(name)) for name in GLOBS}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(sys.argv[1], Path(sys.argv[2]), line.strip())), flush=True)
