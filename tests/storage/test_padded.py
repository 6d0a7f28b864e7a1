"""Samples as padded arrays: the tokens of the records, row by row; a trained token without a log prob is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forge.storage.dataset import Dataset
from forge.storage.errors import Untrainable
from forge.storage.padded import COLUMNS, batches, padded
from forge.storage.parts import run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from forge.storage.records import Sample

LENGTHS = ((3, 5), (1, 1), (4, 0), (2, 9), (7, 2))
"""Prompt and response of each row."""


def sample(number: int, prompt: int, response: int) -> Sample:
    mask = (np.arange(response) % 3 != 1).astype(np.int8)
    scores = np.where(mask == 1, -0.5 - np.arange(response), np.nan).astype(np.float32)
    return Sample(
        sample_id=f"sample-{number}",
        run_id="run",
        session_id=f"session-{number}",
        task_id=None,
        group_id=None,
        rollout_index=None,
        row_index=0,
        row_count=1,
        prompt_ids=np.arange(1, 1 + prompt, dtype=np.int32),
        response_ids=np.arange(100, 100 + response, dtype=np.int32),
        response_mask=mask,
        rollout_log_probs=scores,
        turn_starts=[0],
        turn_ends=[response],
        turn_call_ids=["call"],
        policy_version_min=0,
        policy_version_max=0,
    )


SAMPLES = [sample(number, *lengths) for number, lengths in enumerate(LENGTHS)]


def written(data: Path, samples: list[Sample]) -> Dataset:
    write_part(run_dir(table_dir(data, "samples", DEFAULT.name), "run") / "part-all.parquet", "samples", samples)
    return Dataset(data)


@pytest.mark.parametrize("rows", [1, 2, 5, 99])
def test_every_row_has_its_tokens_and_nothing_behind_them(tmp_path: Path, rows: int) -> None:
    found = list(batches(written(tmp_path, SAMPLES).sample_tables(columns=COLUMNS), rows))
    assert sum(len(batch.lengths) for batch in found) == len(SAMPLES)
    for number, true in enumerate(SAMPLES):
        batch, row = found[number // rows], number % rows
        prompt, end = len(true.prompt_ids), len(true.prompt_ids) + len(true.response_ids)
        assert batch.lengths[row] == end
        assert batch.ids.shape[1] == max(batch.lengths)
        assert batch.ids[row, :end].tolist() == [*true.prompt_ids, *true.response_ids]
        assert batch.mask[row, prompt:end].tolist() == true.response_mask.tolist()
        assert batch.log_probs[row, prompt:end].tolist() == np.nan_to_num(true.rollout_log_probs).tolist()
        for array in (
            batch.ids[row, end:],
            batch.mask[row, :prompt],
            batch.mask[row, end:],
            batch.log_probs[row, end:],
        ):
            assert not array.any()


def test_a_trained_token_without_a_log_prob_is_refused_by_its_sample_s_name(tmp_path: Path) -> None:
    bad = replace(SAMPLES[3], rollout_log_probs=np.full(9, np.nan, dtype=np.float32))
    tables = written(tmp_path, [*SAMPLES[:3], bad]).sample_tables(columns=COLUMNS)
    with pytest.raises(Untrainable, match="sample-3 has a token with mask 1 and no log prob"):
        list(batches(tables, 8))


def test_no_rows_make_empty_arrays(tmp_path: Path) -> None:
    table = next(written(tmp_path, SAMPLES).sample_tables()).slice(0, 0)
    assert padded(table).ids.shape == (0, 0)
