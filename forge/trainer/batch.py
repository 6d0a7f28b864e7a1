"""From kept samples to what a forward pass needs, with every denominator already fixed.

A row carries its tokens' weight, so the batch loss is a plain sum over tokens: however rows are cut into
micro-batches, the gradient is the same. What could teach something wrong is refused here, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forge.storage.errors import Untrainable
from forge.storage.records import Ids, LogProbs, Sample
from forge.trainer.advantage import Selection

PROCESSED = "processed"
"""Log probs of the distribution that was sampled from, temperature included."""


@dataclass(frozen=True, slots=True)
class Row:
    sample_id: str
    ids: Ids
    """Prompt and response, shape [T]."""
    places: NDArray[np.int64]
    """Indices into ``ids`` of the trained tokens, shape [K]."""
    old_log_probs: LogProbs
    """As recorded when they were sampled, shape [K]."""
    temperature: float
    advantage: float
    weight: float
    """Of each trained token in the batch loss."""


def rows_of(chosen: Selection) -> list[Row]:
    """The batch. A token of session s weighs ``1 / (sessions * masked tokens of s)``: the batch loss is the mean over
    sessions of each session's mean over its tokens (design section 8; slime's per-rollout mean)."""
    return [_row(row, chosen) for row in chosen.rows]


def _row(sample: Sample, chosen: Selection) -> Row:
    check(sample)
    trained = np.flatnonzero(sample.response_mask)
    assert sample.temperature is not None
    return Row(
        sample_id=sample.sample_id,
        ids=np.concatenate((sample.prompt_ids, sample.response_ids)),
        places=trained + len(sample.prompt_ids),
        old_log_probs=sample.rollout_log_probs[trained],
        temperature=sample.temperature,
        advantage=chosen.advantages[sample.session_id],
        weight=1.0 / (len(chosen.advantages) * chosen.tokens[sample.session_id]),
    )


def check(sample: Sample) -> None:
    """Refuses a sample from which this trainer would learn something wrong."""
    name = f"sample {sample.sample_id} of run {sample.run_id}"
    if sample.media:
        raise Untrainable(
            f"{name} holds media, and this trainer reads text only",
            "train it with a multimodal trainer, or choose other runs with --run",
        )
    if len({len(sample.response_ids), len(sample.response_mask), len(sample.rollout_log_probs)}) != 1:
        raise Untrainable(
            f"{name}: ids, mask and log probs differ in length", "rebuild the samples: forge decode --rebuild"
        )
    if not len(sample.prompt_ids):
        raise Untrainable(f"{name} has no prompt", "rebuild the samples: forge decode --rebuild")
    if not np.isfinite(sample.rollout_log_probs[sample.response_mask == 1]).all():
        raise Untrainable(
            f"{name} has a token with mask 1 and no log prob", "rebuild the samples: forge decode --rebuild"
        )
    if sample.temperature is None or sample.temperature <= 0:
        said = "differs between its turns or was not sent" if sample.temperature is None else f"is {sample.temperature}"
        raise Untrainable(
            f"{name}: the sampling temperature {said}; probabilities cannot be told",
            "fix it for the run: --sampling '{\"temperature\": 1.0}'",
        )
    if sample.logprobs_mode != PROCESSED and sample.temperature != 1.0:
        raise Untrainable(
            f"{name}: log probs are {sample.logprobs_mode or 'of unknown kind'} at temperature {sample.temperature}, "
            "so they are not those of the distribution it was sampled from",
            "start the policy server with processed log probs, or sample at temperature 1",
        )


def micro_batches(rows: Iterable[Row], max_tokens: int) -> list[list[Row]]:
    """Rows of like length together, each batch at most ``max_tokens`` with padding; a longer row stands alone."""
    batches: list[list[Row]] = []
    for row in sorted(rows, key=lambda r: (-len(r.ids), r.sample_id)):
        # Sorted by falling length: the first row of a batch is its width.
        if batches and len(batches[-1][0].ids) * (len(batches[-1]) + 1) <= max_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def padded(rows: Sequence[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and attention mask, shape [B, T], padded on the right: under causal attention no real token sees a pad."""
    width = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    seen = np.zeros((len(rows), width), dtype=np.int64)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = row.ids
        seen[at, : len(row.ids)] = 1
    return ids, seen
