"""Files of every schema version there ever was are read back, alone and beside new ones."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from forge.storage.columns import SCHEMA_VERSION, TABLES, schema
from forge.storage.dataset import Dataset
from forge.storage.migrations import MIGRATIONS
from forge.storage.parts import run_of
from forge.storage.sql import views
from tests.storage import dataset_kit as kit

VERSIONS = range(1, SCHEMA_VERSION + 1)


def golden(version: int) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    folder = kit.GOLDEN / f"v{version}"
    return folder, json.loads(gzip.decompress((folder / "expected.json.gz").read_bytes()))


def check(dataset: Dataset, expected: dict[str, list[dict[str, Any]]]) -> None:
    """Every value that was written is there; what the version did not know is as in a new record."""
    found = {
        "calls": {(c.call_id, c.choice): kit.described(c) for c in dataset.calls()},
        "sessions": {s.session_id: kit.described(s) for s in dataset.sessions()},
        "samples": {s.sample_id: kit.described(s) for s in dataset.samples()},
    }
    assert dataset.damaged == []
    for table, key in (("sessions", "session_id"), ("samples", "sample_id")):
        assert len(found[table]) == len(expected[table])
        assert all(found[table][row[key]].items() >= row.items() for row in expected[table])
    assert len(found["calls"]) == len(expected["calls"])
    assert all(found["calls"][row["call_id"], row["choice"]].items() >= row.items() for row in expected["calls"])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_files_of_every_version_are_read_back(version: int) -> None:
    folder, expected = golden(version)
    check(Dataset(folder), expected)


@pytest.mark.parametrize("version", VERSIONS)
def test_old_and_new_parts_of_one_run_go_together(tmp_path: Path, version: int) -> None:
    """A run goes on after an upgrade: the chain passes from the older files into those written now."""
    old, expected = golden(version)
    kit.write(tmp_path, kit.RUNS[:1])
    for path in sorted(old.glob("calls/*/*.parquet"))[:3]:
        shutil.copy(path, tmp_path / "calls" / f"run_id={run_of(path)}" / path.name)
    check(Dataset(tmp_path), expected)
    with duckdb.connect() as db:
        db.execute(views(tmp_path))
        found = {
            (call, choice): ids
            for call, choice, ids in db.execute("SELECT call_id, choice, prompt_ids FROM calls").fetchall()
        }
    assert found == {(c["call_id"], c["choice"]): c["prompt_ids"] for c in expected["calls"]}
    assert pq.read_table(tmp_path / "calls").num_rows == len(expected["calls"])


@pytest.mark.parametrize("table", list(TABLES))
def test_a_changed_schema_has_a_new_version(table: str) -> None:
    """The golden files of the current version hold its very schema: whoever changes a column raises the number, writes
    the function from the last one, and new golden files."""
    for path in (kit.GOLDEN / f"v{SCHEMA_VERSION}").glob(f"{table}/**/*.parquet"):
        assert pq.read_schema(path).equals(schema(table), check_metadata=False)
    assert sorted(MIGRATIONS) == list(range(1, SCHEMA_VERSION))


@pytest.mark.parametrize("table", list(TABLES))
def test_a_column_that_came_later_is_nullable(table: str) -> None:
    """Else a reader that knows no versions would find nulls where the schema says there are none."""
    first = pq.read_schema(next((kit.GOLDEN / "v1").glob(f"{table}/**/*.parquet")))
    assert set(first.names) <= set(schema(table).names)
    for field in schema(table):
        assert field.nullable or field.name in first.names
