"""prime-rl: the ``rollouts.bin`` that its trainer waits for, MessagePack of ``TrainingBatch`` by position.

Fields of its newest known shape, in their order, up to the last one we fill; prime-rl takes defaults for what follows.
The non-obvious fact: its loss is a mean over the tokens of a step, so ``rl_weights`` makes every session count alike
(their mean is 1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.rows import Needs, Row
from forge.storage.files import write_whole

STEP: Final = re.compile(r"step_(\d+)")


class TrainingSample(msgspec.Struct, array_like=True, gc=False):
    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: None
    ref_hidden_states: None
    mm_kwargs: None
    routed_experts: None
    mm_token_type_ids: None
    rl_weights: list[float]
    ce_weights: None
    ref_kl_weights: None
    advantages: list[float]


class TrainingBatch(msgspec.Struct, array_like=True, gc=False):
    examples: list[TrainingSample]
    step: int


class PrimeRL:
    name = "prime-rl"
    needs = Needs(advantage=True, temperature=True)
    suffix = ".bin"
    caution = "the trainer reads OUTPUT_DIR/rollouts/step_N/rollouts.bin; N is taken from the path's step_N, else 0"

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        data = msgspec.msgpack.encode(TrainingBatch([training_sample(row) for row in rows], _step(path)))
        write_whole(path, lambda unfinished: unfinished.write_bytes(data), crash_name="export")
        return Counter()


def training_sample(row: Row) -> TrainingSample:
    mask, temperature = row.mask == 1, row.sample.temperature
    assert row.advantage is not None, "asked for"
    assert temperature is not None, "asked for"
    return TrainingSample(
        token_ids=row.ids.tolist(),
        mask=mask.tolist(),
        logprobs=row.whole_log_probs().tolist(),
        temperatures=[temperature] * len(mask),
        env_name=row.sample.run_id,
        ref_logprobs=None,
        ref_hidden_states=None,
        mm_kwargs=None,
        routed_experts=None,
        mm_token_type_ids=None,
        rl_weights=_where(mask, row.weight),
        ce_weights=None,
        ref_kl_weights=None,
        advantages=_where(mask, row.advantage),
    )


def _where(mask: Any, value: float) -> list[float]:
    values: list[float] = np.where(mask, value, 0.0).tolist()
    return values


def _step(path: Path) -> int:
    found = STEP.fullmatch(path.resolve().parent.name)
    return int(found[1]) if found else 0
