"""Parts: every field comes back, one schema everywhere, damage is named and hides nothing."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from forge.overview import count
from forge.storage.columns import SCHEMA_VERSION, TABLES, schema
from forge.storage.dataset import Dataset
from forge.storage.dataset_calls import BrokenDataset, CallReader
from forge.storage.delta import Chain, Delta
from forge.storage.errors import BadInput
from forge.storage.journal import Position
from forge.storage.parts import ROW_GROUP_BYTES, part_name, parts_in, read_part, run_dir, table_dir, write_part
from forge.storage.recipe import Recipe
from forge.storage.records import Call, Sample, Session
from forge.storage.rows import samples as samples_from
from forge.storage.rows import sessions as sessions_from
from forge.storage.rows import to_batch

Record = Call | Session | Sample


def filled(kind: type[Any], **given: object) -> Any:
    """A record with another value in every field."""
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for number, field in enumerate(dataclasses.fields(kind)):
        hint = hints[field.name]
        options = (
            [h for h in typing.get_args(hint) if h is not types.NoneType] if isinstance(hint, types.UnionType) else []
        )
        base = options[0] if options else hint
        values[field.name] = _value(base, number)
    return kind(**{**values, **given})


def _value(hint: Any, number: int) -> object:
    plain: dict[Any, object] = {
        str: f"text {number} \u00e4\u4e16",
        int: number + 1,
        float: number + 0.5,
        bool: True,
        bytes: bytes([number % 256]) * 3,
    }
    if hint in plain:
        return plain[hint]
    dtype = {"int32": np.int32, "float32": np.float32, "int8": np.int8}
    for name, kind in dtype.items():
        if name in str(hint):
            return np.arange(number % 3 + 2, dtype=kind) * (-1 if name == "float32" else 1)
    return [f"t{number}"] if typing.get_args(hint) == (str,) else [number, number + 1]


def same(one: Any, other: Any) -> bool:
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
                return False
        elif a != b or (type(a) is not type(b) and not isinstance(a, str)):
            return False
    return True


def empty(kind: type[Any]) -> Any:
    """A record with nothing in it but what must be."""
    required = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    full = filled(kind)
    hints = typing.get_type_hints(kind)
    return kind(
        **{name: None if isinstance(hints[name], types.UnionType) else getattr(full, name) for name in required}
    )


def place(number: int) -> str:
    return part_name(0, 1, Position(1, number), Position(1, number + 1))


def write_calls(data: Path, groups: list[list[Call]], run_id: str = "r") -> list[Path]:
    """One part per group, as the decoder would write them."""
    chains: dict[str, Chain] = {}
    paths = []
    for number, calls in enumerate(groups):
        path = run_dir(table_dir(data, "calls"), run_id) / place(number)
        rows = [chains.setdefault(c.session_id, Chain()).add(c) for c in calls]
        write_part(path, "calls", rows)
        paths.append(path)
    return paths


def conversation(session: str, turns: int, *, first: int = 0, tokens: int = 5) -> list[Call]:
    """Turns that extend each other exactly."""
    calls: list[Call] = []
    history = np.arange(tokens, dtype=np.int32)
    for number in range(turns):
        output = np.arange(3, dtype=np.int32) + number
        calls.append(
            Call(
                call_id=f"{session}-{number}",
                run_id="r",
                session_id=session,
                seq=first + number,
                prompt_ids=history,
                output_ids=output,
                output_log_probs=-output.astype(np.float32),
                trainable=True,
            )
        )
        history = np.concatenate((history, output, output))
    return calls


@pytest.mark.parametrize(("table", "kind"), [("sessions", Session), ("samples", Sample)])
def test_every_field_of_a_record_comes_back(tmp_path: Path, table: str, kind: type[Any]) -> None:
    records = [filled(kind), empty(kind)]
    path = tmp_path / f"{table}.parquet"
    write_part(path, table, records)
    back: list[Any] = {"sessions": sessions_from, "samples": samples_from}[table](read_part(path, table))  # type: ignore[operator]
    assert len(back) == 2
    for given, found in zip(records, back, strict=True):
        assert same(given, found), (given, found)


def test_every_field_of_a_call_comes_back(tmp_path: Path) -> None:
    full = filled(Call, run_id="r", messages='[{"a":1},{"b":2}]', media='["m"]', response='{"role":"assistant"}')
    bare = empty(Call)
    bare = dataclasses.replace(bare, run_id="r", call_id="bare")
    write_calls(tmp_path, [[full], [bare]])
    back = list(Dataset(tmp_path).calls())
    # The place in the tree is the writer's to say.
    placed = {"parent_call_id": None, "parent_choice": None, "join": "none"}
    for given, found in zip([full, bare], back, strict=True):
        assert same(dataclasses.replace(given, **placed, join_cause=found.join_cause), found), (given, found)


def test_a_missing_log_prob_is_null_in_the_file_and_nan_in_the_record(tmp_path: Path) -> None:
    call = conversation("s", 1)[0]
    call = dataclasses.replace(call, output_log_probs=np.asarray([-1.5, math.nan, 0.0], dtype=np.float32))
    (path,) = write_calls(tmp_path, [[call]])
    assert pq.read_table(path).column("output_log_probs").to_pylist() == [[-1.5, None, 0.0]]
    (back,) = Dataset(tmp_path).calls()
    assert np.isnan(back.output_log_probs[1])
    assert back.output_log_probs.dtype == np.float32


def test_a_value_that_does_not_fit_is_null_and_stops_nothing(tmp_path: Path) -> None:
    absurd = {"prompt_tokens": 10**12, "completion_tokens": "many", "policy_version_end": 2**70, "error": "\ud83d half"}
    calls = conversation("s", 2)
    calls[0] = dataclasses.replace(calls[0], **absurd)  # type: ignore[arg-type]
    write_calls(tmp_path, [calls])
    first, second = Dataset(tmp_path).calls()
    assert (first.prompt_tokens, first.completion_tokens, first.policy_version_end) == (None, None, None)
    assert first.error == "? half"
    assert np.array_equal(second.prompt_ids, calls[1].prompt_ids)


@pytest.mark.parametrize("table", list(TABLES))
def test_columns_and_records_agree(table: str) -> None:
    kinds: dict[str, type[Any]] = {"calls": Call, "sessions": Session, "samples": Sample}
    fields = {f.name for f in dataclasses.fields(kinds[table])}
    renamed = {"start_us": "start_time", "open_us": "open_time", "close_us": "close_time", "reward_us": "reward_time"}
    names = {renamed.get(name, name) for name in fields}
    if table == "calls":
        names = (names - {"prompt_ids"}) | ({f.name for f in dataclasses.fields(Delta)} - {"call"})
    assert names == {column.name for column in TABLES[table]}


def test_every_file_has_the_one_schema_and_byte_split_ids(tmp_path: Path) -> None:
    """Field cases 177, 178, 179, 181: a column of type null where the first rows had none, another type or another
    nullability in the next file, maps."""
    first, second = write_calls(tmp_path, [conversation("s", 2), conversation("t", 1)])
    for path in (first, second):
        assert pq.read_schema(path).equals(schema("calls"), check_metadata=False)
        assert pq.read_schema(path).metadata[b"forge.schema_version"] == str(SCHEMA_VERSION).encode()
        group = pq.read_metadata(path).row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
        for name in ("prompt_suffix_ids", "output_ids", "output_log_probs"):
            column = columns[f"{name}.list.element"]
            assert "BYTE_STREAM_SPLIT" in column.encodings
            assert column.compression == "ZSTD"
        assert columns["session_id"].statistics.min in ("s", "t")


@pytest.mark.parametrize("table", list(TABLES))
def test_no_column_is_of_a_type_that_readers_choke_on(table: str) -> None:
    """Field cases 177, 180, 181: null, map, struct, a list of lists; also of an empty file, whose rows say nothing."""
    for field in schema(table):
        inner = field.type.value_type if pa.types.is_large_list(field.type) else field.type
        assert not pa.types.is_nested(inner), field.name
        assert not pa.types.is_null(inner), field.name
    assert to_batch(table, []).schema.equals(schema(table))


def test_plain_readers_take_the_whole_folder(tmp_path: Path) -> None:
    write_calls(tmp_path, [conversation("s", 2)], "r")
    write_calls(tmp_path, [conversation("t", 3)], "q")
    assert pq.read_table(tmp_path / "calls").num_rows == 5
    assert pads.dataset(tmp_path / "calls").to_table().num_rows == 5


def test_row_groups_are_few_and_bounded_in_bytes_however_unequal_the_rows(tmp_path: Path) -> None:
    """Field cases 182, 183: more than 32,767 row groups, and a column chunk beyond 2 GB, are files that nobody reads.
    The average of all rows says nothing of those that stand together."""
    small = conversation("s", 300)
    large = [
        dataclasses.replace(c, request_raw=bytes(ROW_GROUP_BYTES * 5 // 8)) for c in conversation("t", 2, first=1000)
    ]
    (path,) = write_calls(tmp_path, [[*small, *large]])
    found = pq.read_metadata(path)
    groups = [found.row_group(i) for i in range(found.num_row_groups)]
    assert [group.num_rows for group in groups] == [301, 1]
    for group in groups:
        sizes = [group.column(i).total_uncompressed_size for i in range(group.num_columns)]
        assert sum(sizes) <= ROW_GROUP_BYTES
    assert len(list(Dataset(tmp_path).calls())) == 302


def test_calls_of_one_session_come_in_order_from_many_parts(tmp_path: Path) -> None:
    one, other = conversation("s", 6), conversation("t", 6, first=100)
    write_calls(tmp_path, [[one[0], other[0]], [one[1], one[2]], [other[1]], [one[3], other[2]], [one[4]], [one[5]]])
    found = list(Dataset(tmp_path).calls(session_id="s"))
    assert [c.call_id for c in found] == [c.call_id for c in one]
    for given, back in zip(one, found, strict=True):
        assert np.array_equal(given.prompt_ids, back.prompt_ids)
    assert [c.join for c in found] == ["none"] + ["exact"] * 5


def test_memory_for_chains_is_bounded_and_what_was_dropped_is_read_again(tmp_path: Path) -> None:
    talks = [conversation(f"s{i}", 5, tokens=200) for i in range(4)]
    paths = write_calls(tmp_path, [[talk[turn] for talk in talks] for turn in range(5)])
    found = list(CallReader(paths, [], remembered_bytes=1))
    assert [c.call_id for c in found] == [talk[turn].call_id for turn in range(5) for talk in talks]
    for talk in talks:
        for given in talk:
            (back,) = [c for c in found if c.call_id == given.call_id]
            assert np.array_equal(given.prompt_ids, back.prompt_ids)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        (
            {"forge.schema_version": str(SCHEMA_VERSION + 1)},
            f"schema version {SCHEMA_VERSION + 1}; this forge reads up to {SCHEMA_VERSION}",
        ),
        ({"forge.schema_version": str(SCHEMA_VERSION)}, "has no seal"),
        ({}, "was not written by forge"),
    ],
)
@pytest.mark.parametrize("table", ["calls", "sessions"])
def test_a_newer_or_foreign_file_is_named_and_does_not_hide_the_others(
    tmp_path: Path, table: str, metadata: dict[str, str], reason: str
) -> None:
    write_calls(tmp_path, [conversation("s", 1)])
    write_part(
        run_dir(table_dir(tmp_path, "sessions"), "r") / place(1), "sessions", [Session(session_id="s", run_id="r")]
    )
    (path,) = parts_in(table_dir(tmp_path, table))
    other = path.with_name("part-zz.parquet")
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), other)
    dataset = Dataset(tmp_path)
    assert [c.call_id for c in dataset.calls()] == ["s-0"]
    assert [s.session_id for s in dataset.sessions()] == ["s"]
    (damaged,) = dataset.damaged
    assert (damaged.path, reason in damaged.reason) == (other, True)


@pytest.mark.parametrize("how", ["truncated", "flipped", "empty"])
def test_a_corrupt_part_is_named_and_does_not_hide_the_others(tmp_path: Path, how: str) -> None:
    one, other = conversation("s", 3), conversation("t", 3, first=100)
    paths = write_calls(tmp_path, [[one[0], other[0]], [one[1]], [one[2], other[1], other[2]]])
    raw = bytearray(paths[1].read_bytes())
    if how == "flipped":
        column = pq.read_metadata(paths[1]).row_group(0).column(0)
        raw[column.data_page_offset + 40] ^= 0xFF
    paths[1].write_bytes({"truncated": raw[: len(raw) // 2], "flipped": raw, "empty": b""}[how])
    counted = count(Dataset(tmp_path))
    assert {name: counts.calls for name, counts in counted.items()} == {"s": 3 if how == "flipped" else 2, "t": 3}
    dataset = Dataset(tmp_path)
    assert [c.call_id for c in dataset.calls()] == ["s-0", "t-0", "t-1", "t-2"]
    assert {d.path for d in dataset.damaged} == {paths[1], paths[2]}
    assert "s-2" in dataset.damaged[-1].reason


def test_a_dangling_parent_names_call_and_file(tmp_path: Path) -> None:
    paths = write_calls(tmp_path, [[c] for c in conversation("s", 3)])
    paths[0].unlink()
    with pytest.raises(BrokenDataset, match=f"call s-1 .* in .*{paths[1].name} builds on call s-0"):
        list(Dataset(tmp_path).calls())


def test_a_wrong_prompt_names_call_and_file(tmp_path: Path) -> None:
    calls = conversation("s", 2)
    paths = write_calls(tmp_path, [[c] for c in calls])
    other = dataclasses.replace(calls[0], output_ids=calls[0].output_ids + 1)
    write_part(paths[0], "calls", [Chain().add(other)])
    with pytest.raises(BrokenDataset, match=rf"call s-1 .* in .*{paths[1].name}: its prompt of 11 ids"):
        list(Dataset(tmp_path).calls())


def test_the_highest_revision_of_a_session_counts(tmp_path: Path) -> None:
    folder = run_dir(table_dir(tmp_path, "sessions"), "r")
    states = [Session(session_id="s", run_id="r", revision=n, reward=n / 2) for n in range(3)]
    write_part(folder / place(1), "sessions", states[1:])
    write_part(folder / place(2), "sessions", states[:1])
    assert [(s.revision, s.reward) for s in Dataset(tmp_path).sessions("r")] == [(2, 1.0)]
    assert Dataset(tmp_path).sessions("other") == []
    assert Dataset(tmp_path).runs() == ["r"]


def test_a_recipe_of_ones_own_gets_its_set_and_is_kept_beside_it(tmp_path: Path) -> None:
    dataset = Dataset(tmp_path)
    recipe = Recipe(name="short", max_tokens=10)
    sample = dataclasses.replace(filled(Sample), run_id="r")
    dataset.write_samples("r", [sample, sample], recipe)
    dataset.write_samples("r", [sample], recipe)
    assert len(list(dataset.samples("r", "short"))) == 1
    assert list(dataset.samples("r")) == []
    with pytest.raises(BadInput, match="another recipe named 'short'"):
        dataset.write_samples("r", [sample], Recipe(name="short", max_tokens=11))
    with pytest.raises(BadInput, match="the decoder's"):
        dataset.write_samples("r", [sample], Recipe())
    assert pq.read_table(tmp_path / "samples").num_rows == 1


def test_names_of_runs_stay_inside_the_dataset(tmp_path: Path) -> None:
    write_calls(tmp_path, [conversation("s", 1)], "../../evil/..")
    (path,) = parts_in(table_dir(tmp_path, "calls"))
    assert path.parent.parent == tmp_path / "calls"
    assert Dataset(tmp_path).runs() == ["../../evil/.."]
