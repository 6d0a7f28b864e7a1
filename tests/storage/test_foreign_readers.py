"""Readers that nobody here wrote find every row and every cell, of several runs together, also while they are written.

DuckDB and pyarrow are at hand; Polars, pandas, Hugging Face datasets, Ray Data and Daft live in an environment of their
own: ``make test-readers``.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from forge.proxy.recording.decoder import Decoder
from forge.storage.columns import TABLES
from forge.storage.delta import Chain
from forge.storage.parts import ROW_GROUP_BYTES, parts_in, read_part, run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from tests.storage import dataset_kit as kit
from tests.storage import foreign
from tests.storage.frames_kit import Kit, story

Answer = dict[str, Any]
Asked = Callable[[str], Answer]
Reader = Callable[[Path], Asked]
OTHERS = os.environ.get("FORGE_TEST_READERS")
"""The Python that has the others."""
LIBRARIES = [
    "pyarrow",
    "duckdb",
    *(pytest.param(name, marks=pytest.mark.readers) for name in ("polars", "pandas", "datasets", "ray", "daft")),
]


@pytest.fixture(params=LIBRARIES)
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reader]:
    """Starts a library on a data directory."""
    name: str = request.param
    if name in ("pyarrow", "duckdb"):
        yield lambda data: lambda what: json.loads(json.dumps(foreign.answer(name, data, what)))
        return
    if OTHERS is None:
        pytest.skip("FORGE_TEST_READERS names no Python that has it: make test-readers")
    with ExitStack() as stack:
        yield lambda data: _child([OTHERS, foreign.__file__, name, str(data)], tmp_path, stack)


def _child(command: list[str], folder: Path, stack: ExitStack) -> Asked:
    env = {
        **{key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")},
        **{"FOREIGN_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")},
        **{"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "true"},
    }
    errors = stack.enter_context((folder / "stderr").open("w+"))
    child = stack.enter_context(
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
    )
    assert child.stdin is not None
    assert child.stdout is not None
    say, hear = child.stdin, child.stdout
    stack.callback(say.close)

    def ask(what: str) -> Answer:
        say.write(f"{what}\n")
        say.flush()
        # Some libraries print; ours is the line that is an object.
        for line in hear:
            if line.startswith("{"):
                answer: Answer = json.loads(line)
                return answer
        errors.seek(0)
        pytest.fail(f"{command[2]} ended: {errors.read()[-3000:]}")

    return ask


def truth(data: Path) -> Answer:
    """What our own reader finds, part by part."""
    found: Answer = {}
    for table in TABLES:
        parts = parts_in(table_dir(data, table, DEFAULT.name if table == "samples" else None))
        rows = [row for path in parts for row in read_part(path, table).to_pylist()]
        found[table] = foreign.plain_rows(table, rows)
    return found


def test_every_cell_of_several_runs_is_found(tmp_path: Path, reader: Reader) -> None:
    """With tools, thoughts and images, and without. Field cases 177, 178, 179: the first file's column of nothing but
    nulls decided the type, or its nullability, for all that came after."""
    data = tmp_path / "data"
    kit.write(data)
    first = run_dir(table_dir(data, "calls"), "bare")
    write_part(first / "part-a.parquet", "calls", [Chain().add(kit.plain_calls("bare")[0])])
    write_part(first / "part-b.parquet", "calls", [])
    known = truth(data)
    assert {table: len(rows) for table, rows in known.items()} == {"calls": 85, "sessions": 6, "samples": 6}
    assert reader(data)("tables") == known


def test_every_moment_is_a_good_one_to_read(tmp_path: Path, reader: Reader) -> None:
    """While the decoder writes: never half a file, never a row less than before."""
    data = tmp_path / "data"
    data.mkdir()
    script = Kit(data)
    story(script, sessions=3, turns=8)
    script.close()
    ask = reader(data)
    assert ask("tables") == {"calls": [], "sessions": [], "samples": []}
    writer = threading.Thread(target=_decode, args=(data,))
    writer.start()
    counts = [len(ask("tables")["calls"])]
    while writer.is_alive():
        counts.append(len(ask("tables")["calls"]))
    writer.join()
    last = ask("tables")
    assert last == truth(data)
    assert counts == sorted(counts)
    assert len(last["calls"]) == 25


def test_lists_over_several_row_groups_are_read(tmp_path: Path, reader: Reader) -> None:
    """Field cases 180, 181: "Nested data conversions not implemented for chunked array outputs", for a list column that
    came in several chunks, and for maps."""
    data = tmp_path / "data"
    (plain, *_) = kit.plain_calls("long")
    ids = np.arange(1 << 18, dtype=np.int32)
    calls = [
        replace(plain, call_id=f"c{n}", prompt_ids=ids[n:], request_raw=bytes(ROW_GROUP_BYTES * 5 // 8))
        for n in range(3)
    ]
    path = run_dir(table_dir(data, "calls"), "long") / "part-a.parquet"
    write_part(path, "calls", [Chain().add(call) for call in calls])
    assert pq.read_metadata(path).num_row_groups == 3
    assert reader(data)("lengths") == {f"c{n}": len(ids) - n for n in range(3)}


def _decode(data: Path) -> None:
    decoder = Decoder(data)
    decoder.catch_up()
    decoder.close()
