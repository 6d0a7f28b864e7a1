"""Records to Arrow rows and back, by the columns of ``columns.py``.

Token lists go as numpy arrays, never as Python lists of numbers. A missing log probability is NaN in a record and
null in a row. Times are microseconds in a record and timestamps in a row; that is the only change of name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forge.storage.columns import IDS, INTS, LOG_PROBS, MASK, NAME, TABLES, TEXT, TEXTS, TIME, Column, schema
from forge.storage.delta import Delta
from forge.storage.records import Call, Sample, Session

log = logging.getLogger(__name__)

Row = Delta | Session | Sample

_DTYPES: Final = {IDS: np.int32, LOG_PROBS: np.float32, MASK: np.int8, INTS: np.int64}
_UNFIT: Final = (pa.ArrowException, OverflowError, TypeError, UnicodeError)
_FIELD_OF: Final = {
    "start_time": "start_us",
    "open_time": "open_us",
    "close_time": "close_us",
    "reward_time": "reward_us",
}
"""Record fields that have another name than their column."""
_OF_DELTA: Final = frozenset(Delta.__dataclass_fields__) - {"call"}
"""Columns of ``calls`` that a ``Delta`` adds to its call."""


def _getter(table: str, name: str) -> Callable[[Row], Any]:
    field = _FIELD_OF.get(name, name)
    return attrgetter(field if table != "calls" or name in _OF_DELTA else f"call.{field}")


_GETTERS: Final = {table: {c.name: _getter(table, c.name) for c in columns} for table, columns in TABLES.items()}
"""Of each table, what takes a column's value from a row."""
_WIDTH_OF: Final = {IDS: 4, LOG_PROBS: 4, MASK: 1, INTS: 8, TEXTS: 8, TEXT: 1, pa.large_binary(): 1}
_WIDTHS: Final = {
    table: [(_WIDTH_OF[c.type], _GETTERS[table][c.name]) for c in columns if c.type in _WIDTH_OF]
    for table, columns in TABLES.items()
}
"""Of each table, the columns without a fixed size: bytes per element, and the value's getter."""


def _table_of(row: Row) -> str:
    return {Delta: "calls", Session: "sessions", Sample: "samples"}[type(row)]


def to_batch(table: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """One record batch with the table's whole schema."""
    arrays = [_array(column, list(map(_GETTERS[table][column.name], rows))) for column in TABLES[table]]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(table))


def size(row: Row) -> int:
    """About how many bytes it takes in memory."""
    return sum(width * len(value) for width, get in _WIDTHS[_table_of(row)] if (value := get(row)) is not None)


def deltas(table: pa.Table) -> list[Delta]:
    """The rows of ``calls``, still as deltas."""
    columns = _columns("calls", table)
    made: list[Delta] = []
    for values in _rows(columns, table.num_rows):
        extra = {name: values.pop(name) for name in _OF_DELTA}
        made.append(Delta(call=Call(**values), **extra))
    return made


def sessions(table: pa.Table) -> list[Session]:
    return [Session(**values) for values in _rows(_columns("sessions", table), table.num_rows)]


def samples(table: pa.Table) -> list[Sample]:
    return [Sample(**values) for values in _rows(_columns("samples", table), table.num_rows)]


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    dtype = _DTYPES.get(column.type)
    if dtype is None:
        try:
            return pa.array(values, column.type)
        except _UNFIT:
            return pa.array([_fitting(column, value) for value in values], column.type)
    # An empty list is null where there may be one: nothing was measured.
    arrays = [np.asarray(value, dtype=dtype) for value in values]
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(a) for a in arrays], out=offsets[1:])
    flat = np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)
    # from_pandas: NaN becomes null, which only log probabilities have.
    items = pa.array(flat, column.type.value_type, from_pandas=column.type is LOG_PROBS)
    absent = pa.array([not len(a) for a in arrays], pa.bool_()) if column.nullable else None
    return pa.LargeListArray.from_arrays(pa.array(offsets), items, type=column.type, mask=absent)


def _fitting(column: Column, value: Any) -> Any:
    """What an engine or a harness said may not fit (a usage of 10**12, half a surrogate pair): one absurd value must
    not keep a whole part from being written."""
    try:
        pa.scalar(value, column.type)
    except _UNFIT as error:
        log.warning("value does not fit: column=%s: %s", column.name, error)
        if isinstance(value, str) and column.type in (TEXT, NAME):
            return value.encode(errors="replace").decode()
        if not column.nullable:
            raise
        return None
    return value


def _columns(table: str, data: pa.Table) -> dict[str, Sequence[Any]]:
    """Field name to its values, one per row."""
    return {
        _FIELD_OF.get(column.name, column.name): _READ.get(column.type, _plain)(data.column(column.name))
        for column in TABLES[table]
    }


def _rows(columns: dict[str, Sequence[Any]], count: int) -> list[dict[str, Any]]:
    names = list(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)] if count else []


def _plain(column: pa.ChunkedArray) -> Sequence[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _micros(column: pa.ChunkedArray) -> Sequence[Any]:
    return _plain(pc.cast(column, pa.int64()))


def _numpy(column: pa.ChunkedArray) -> Sequence[Any]:
    """One numpy array per row. A copy: the whole file need not stay in memory for one row of it."""
    made: list[Any] = []
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False)
        if values.dtype != _DTYPES[column.type]:
            values = values.astype(_DTYPES[column.type])
        bounds = chunk.offsets.to_numpy()
        made += [values[start:end].copy() for start, end in pairwise(bounds)]
    return made


def _ints(column: pa.ChunkedArray) -> Sequence[Any]:
    return [array.tolist() for array in _numpy(column)]


_READ: Final[dict[pa.DataType, Callable[[pa.ChunkedArray], Sequence[Any]]]] = {
    IDS: _numpy,
    LOG_PROBS: _numpy,
    MASK: _numpy,
    INTS: _ints,
    TIME: _micros,
}
