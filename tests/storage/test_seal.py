"""A part that is not what was written is never parsed: every flipped, lost or added byte is found before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.storage.columns import TABLES
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from forge.storage.parts import count_rows, parts_in, read_part, table_dir
from tests.storage import dataset_kit as kit


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    kit.write(folder)
    return folder


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_damage_reaches_the_parser(tmp_path: Path, data: Path, draw: st.DataObject) -> None:
    """Field case 184: a corrupt file crashed the process that read it."""
    table = draw.draw(st.sampled_from(list(TABLES)))
    path = draw.draw(st.sampled_from(parts_in(table_dir(data, table, "default" if table == "samples" else None))))
    raw = bytearray(path.read_bytes())
    at = draw.draw(st.integers(0, len(raw) - 1))
    how = draw.draw(st.sampled_from(["flip", "flip in the footer", "cut", "grow"]))
    if how == "cut":
        raw = raw[:at]
    elif how == "grow":
        raw[at:at] = b"x"
    else:
        at = at if how == "flip" else len(raw) - 1 - at // 3
        raw[at] ^= draw.draw(st.integers(1, 255))
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(raw)
    # One that hits the seal's own mark leaves a whole file behind, of which only the seal's absence is told.
    with pytest.raises(BadInput, match=r"damaged\.parquet (is (no|damaged)|has no seal)"):
        read_part(damaged, table)


def test_the_pages_of_a_few_columns_are_checked_too(tmp_path: Path, data: Path) -> None:
    path = parts_in(table_dir(data, "calls"))[0]
    raw = bytearray(path.read_bytes())
    raw[pq.read_metadata(path).row_group(0).column(0).data_page_offset + 40] ^= 1
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(raw)
    with pytest.raises((OSError, pa.ArrowException)):
        read_part(damaged, "calls", ["call_id"])
    assert count_rows(damaged) == count_rows(path)


def test_other_readers_do_not_see_the_seal(data: Path) -> None:
    for path in parts_in(table_dir(data, "calls")):
        assert pq.read_table(path, partitioning=None).equals(read_part(path, "calls"))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"\xff" * 64 + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "calls" / "run_id=r" / "part-x.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"part-x\.parquet is no"):
        read_part(path, "calls")
    dataset = Dataset(tmp_path)
    assert list(dataset.calls()) == []
    assert [d.path for d in dataset.damaged] == [path]
