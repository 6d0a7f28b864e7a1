"""What older files hold, as the current schema has it: one pure function per schema version, from it to the next.

They stay as they are once released; the golden files of every version (``tests/storage/golden``) are read back through
them for ever. Knows no files: tables in, tables out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from forge.storage.columns import LOG_PROBS, SCHEMA_VERSION, TEXT


def from_1(table: str, data: pa.Table) -> pa.Table:
    """2: log probabilities of prompts; how a harness was configured and how it was asked to treat its history."""
    if table == "calls":
        return _with_nulls(data, "prompt_log_probs", LOG_PROBS)
    if table == "sessions":
        return _with_nulls(_with_nulls(data, "harness_config_hash", TEXT), "history", TEXT)
    return data


def from_2(table: str, data: pa.Table) -> pa.Table:
    """3: whether a session was chosen for its group."""
    return _with_nulls(data, "selection", TEXT) if table == "sessions" else data


def from_3(table: str, data: pa.Table) -> pa.Table:
    """4: a policy server's own sampling; routed experts and kept ids of samples."""
    if table == "calls":
        return _with_nulls(data, "sampling_defaults", TEXT)
    if table == "samples":
        return _with_nulls(_with_nulls(data, "routed_experts", pa.large_binary()), "sampling_mask", pa.large_binary())
    return data


MIGRATIONS: Final[dict[int, Callable[[str, pa.Table], pa.Table]]] = {1: from_1, 2: from_2, 3: from_3}
"""Schema version to the function that leads to the next one."""


def upgrade(table: str, data: pa.Table, version: int) -> pa.Table:
    """The rows of a file of ``version``, as of the current schema."""
    for number in range(version, SCHEMA_VERSION):
        data = MIGRATIONS[number](table, data)
    return data


def _with_nulls(data: pa.Table, name: str, type: pa.DataType) -> pa.Table:
    # Files between two releases may have it under the older number.
    if name in data.column_names:
        return data
    return data.append_column(pa.field(name, type), pa.nulls(data.num_rows, type))
