"""Supervised fine-tuning on the recorded ids: ``input_ids`` and the mask of what the policy sampled.

The non-obvious fact: TRL reads ``completion_mask`` only with ``completion_only_loss=True``, and else trains every id
without a word; ``assistant_masks`` it always reads. So the mask stands under both names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import IDS, MASK, PLACE, write_table
from forge.adapters.trainers.rows import Needs, Row

COLUMNS: Final = {"input_ids": IDS, "completion_mask": MASK, "assistant_masks": MASK, "reward": pa.float64(), **PLACE}


class SftTokens:
    name = "sft-tokens"
    needs = Needs(reward=False, group=False)
    suffix = ".parquet"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_table(path, COLUMNS, ((len(row.ids), _line(row)) for row in rows))
        return Counter()


def _line(row: Row) -> dict[str, Any]:
    masks = {"completion_mask": row.mask, "assistant_masks": row.mask}
    return {**row.place(), "input_ids": row.ids, **masks, "reward": row.sample.reward}
