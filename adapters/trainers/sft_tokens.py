"""Supervised fine-tuning on the recorded ids: ``input_ids`` and ``completion_mask``, which TRL takes as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import IDS, MASK, PLACE, write_table
from forge.adapters.trainers.rows import Needs, Row

COLUMNS: Final = {"input_ids": IDS, "completion_mask": MASK, "reward": pa.float64(), **PLACE}


class SftTokens:
    name = "sft-tokens"
    needs = Needs(reward=False, group=False)
    suffix = ".parquet"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_table(path, COLUMNS, ((len(row.ids), _line(row)) for row in rows))
        return Counter()


def _line(row: Row) -> dict[str, Any]:
    return {**row.place(), "input_ids": row.ids, "completion_mask": row.mask, "reward": row.sample.reward}
