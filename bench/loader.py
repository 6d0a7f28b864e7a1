"""The read side: samples to padded arrays, against the bare reading of the same columns of the same file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench.figures import Figures, of_rounds
from bench.setting import Setting
from bench.words import Words
from forge.storage.dataset import Dataset
from forge.storage.padded import COLUMNS, batches
from forge.storage.parts import run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from forge.storage.records import Sample

ROWS, PROMPT, RESPONSE = 5000, 600, 1000
BATCH = 256
SAMPLED = 0.4
"""Share of a response that the policy sampled; the rest is what tools said."""


def run(set_: Setting, figures: Figures) -> None:
    path, tokens = _written(set_.work / "loader", 50 if set_.quick else ROWS)
    data = set_.work / "loader"

    def bare() -> int:
        return int(pq.read_table(path, columns=list(COLUMNS)).num_rows)

    def ours() -> int:
        found = batches(Dataset(data).sample_tables(columns=COLUMNS), BATCH)
        return sum(len(batch.lengths) for batch in found)

    costs: dict[Callable[[], int], list[float]] = {bare: [], ours: []}
    bare(), ours()
    for number in range(set_.rounds):
        for measured in list(costs)[:: 1 if number % 2 else -1]:
            began = time.process_time()
            measured()
            costs[measured].append(time.process_time() - began)
    figures.add("padded loader / bare pyarrow", of_rounds(costs[bare], costs[ours]))
    figures.add("padded, million tokens per CPU second", of_rounds([tokens / s / 1e6 for s in costs[ours]]))
    figures.add("bare, million tokens per CPU second", of_rounds([tokens / s / 1e6 for s in costs[bare]]))


def _written(data: Path, rows: int) -> tuple[Path, int]:
    """A part of ``samples``, as the decoder writes them, and how many tokens it holds."""
    words = Words(5)
    samples = [_sample(words, number) for number in range(rows)]
    path = run_dir(table_dir(data, "samples", DEFAULT.name), "bench") / "part-all.parquet"
    write_part(path, "samples", samples)
    return path, sum(len(sample.prompt_ids) + len(sample.response_ids) for sample in samples)


def _sample(words: Words, number: int) -> Sample:
    response = words.ids(words.count(RESPONSE))
    mask = (np.arange(len(response)) % 250 < 250 * SAMPLED).astype(np.int8)
    log_probs = np.where(mask == 1, words.log_probs(len(response)), np.float32(np.nan)).astype(np.float32)
    return Sample(
        sample_id=f"s{number}",
        run_id="bench",
        session_id=f"s{number}",
        task_id="task",
        group_id=f"g{number // 8}",
        rollout_index=number % 8,
        row_index=0,
        row_count=1,
        prompt_ids=words.ids(words.count(PROMPT)),
        response_ids=response,
        response_mask=mask,
        rollout_log_probs=log_probs,
        turn_starts=[0],
        turn_ends=[len(response)],
        turn_call_ids=[f"c{number}"],
        policy_version_min=0,
        policy_version_max=0,
        reward=1.0,
    )
