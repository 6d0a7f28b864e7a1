"""SkyRL: the keys of its ``GeneratorOutput``, as Parquet columns: ``read_table(...).to_pydict()`` is one.

The non-obvious fact: in step-wise training SkyRL takes a trajectory's reward from its last step and adds rewards up
over tokens, so only the last token of a session's last row carries it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import FLOATS, IDS, MASK, PLACE, write_table
from forge.adapters.trainers.rows import Needs, Row

COLUMNS: Final = {
    "prompt_token_ids": IDS,
    "response_ids": IDS,
    "rewards": FLOATS,
    "loss_masks": MASK,
    "stop_reasons": pa.string(),
    "rollout_logprobs": FLOATS,
    "trajectory_ids": pa.struct([("instance_id", pa.string()), ("repetition_id", pa.int32())]),
    "is_last_step": pa.bool_(),
    **{name: kind for name, kind in PLACE.items() if name != "is_last"},
}
GENERATOR_OUTPUT: Final = tuple(COLUMNS)[:8]
"""The keys that are SkyRL's own."""


class SkyRL:
    name = "skyrl"
    needs = Needs()
    suffix = ".parquet"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_table(path, COLUMNS, ((len(row.ids), line) for row, line in lines(rows)))
        return Counter()


def lines(rows: Iterable[Row]) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Rows with their columns; repetitions are counted out within a group, since a session may have no index."""
    repetitions: dict[str | None, dict[str, int]] = defaultdict(dict)
    for row in rows:
        group = repetitions[row.group]
        repetition = group.setdefault(row.sample.session_id, len(group))
        yield row, _line(row, repetition)


def _line(row: Row, repetition: int) -> dict[str, Any]:
    sample = row.sample
    rewards = np.zeros(len(sample.response_ids), np.float32)
    if row.last:
        rewards[-1] = row.reward
    return {
        **row.place(),
        "prompt_token_ids": sample.prompt_ids,
        "response_ids": sample.response_ids,
        "rewards": rewards,
        "loss_masks": sample.response_mask,
        "stop_reasons": "length" if sample.truncated else sample.finish_reason,
        "rollout_logprobs": row.log_probs(),
        "trajectory_ids": {"instance_id": row.group, "repetition_id": repetition},
        "is_last_step": row.last,
    }
