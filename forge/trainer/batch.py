"""From kept samples to what a forward pass needs, with every denominator already fixed.

A row carries its tokens' weight, so the batch loss is a plain sum over tokens: however rows are packed and shared
out, the gradient is the same. What could teach something wrong is refused here, by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forge.storage.errors import Untrainable
from forge.storage.records import Ids, LogProbs, Sample
from forge.trainer.advantage import Selection
from forge.trainer.config import Mean

PROCESSED = "processed"
"""Log probs of the distribution that was sampled from, temperature included."""


@dataclass(frozen=True, slots=True)
class Row:
    sample_id: str
    ids: Ids
    """Prompt and response, shape [T]."""
    places: NDArray[np.int64]
    """Indices into ``ids`` of the trained tokens, shape [K]."""
    rollout_log_probs: LogProbs
    """As recorded when they were sampled, shape [K]."""
    temperature: float
    advantage: float
    weight: float
    """Of each trained token in the batch loss."""
    anchor: LogProbs | None = None
    """The learner's own log probs before the first update on this batch, shape [K]; None: as they are now."""


def rows_of(chosen: Selection, mean: Mean = Mean.SESSION) -> list[Row]:
    """The batch, every token with its weight.

    - ``session``: a token of session s weighs ``1 / (sessions * trained tokens of s)``: the mean over sessions of each
      session's mean over its tokens (GRPO, arXiv 2402.03300, equation 3, with sessions for outputs; slime's per-rollout
      mean; verl's ``seq-mean-token-mean`` where a session is one row);
    - ``token``: ``1 / (trained tokens of the batch)``: DAPO, arXiv 2503.14476, equation 8; verl's ``token-mean``.
    """
    total = sum(chosen.tokens.values())
    each = {
        s: 1.0 / (len(chosen.advantages) * n) if mean is Mean.SESSION else 1.0 / total for s, n in chosen.tokens.items()
    }
    return [_row(row, chosen.advantages[row.session_id], each[row.session_id]) for row in chosen.rows]


def _row(sample: Sample, advantage: float, weight: float) -> Row:
    check(sample)
    trained = np.flatnonzero(sample.response_mask)
    assert sample.temperature is not None
    return Row(
        sample_id=sample.sample_id,
        ids=np.concatenate((sample.prompt_ids, sample.response_ids)),
        places=trained + len(sample.prompt_ids),
        rollout_log_probs=sample.rollout_log_probs[trained],
        temperature=sample.temperature,
        advantage=advantage,
        weight=weight,
    )


def rows_digest(rows: Iterable[Sample]) -> str:
    """Of which rows these are and what their sessions earned: the same of the same batch."""
    said = "\n".join(f"{row.run_id} {row.sample_id} {row.reward!r}" for row in rows)
    return hashlib.blake2b(said.encode(), digest_size=16).hexdigest()


def drawn(sessions: Sequence[str], number: int, count: int | None, seed: int) -> list[str]:
    """The sessions of step ``number`` on a batch: all, or ``count`` of them in an order that is told by ``seed``, each
    once before any comes again."""
    if count is None or count >= len(sessions):
        return list(sessions)
    first, found = number * count, list[str]()
    for at in range(first, first + count):
        turn, place = divmod(at, len(sessions))
        found.append(sessions[int(np.random.default_rng([seed, turn]).permutation(len(sessions))[place])])
    return found


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


def packs(rows: Iterable[Row], max_tokens: int) -> list[list[Row]]:
    """Rows put together so that few packs hold them all: the longest first, each into the first pack with room
    (first-fit decreasing: at most 11/9 of the fewest possible). A longer row stands alone."""
    found: list[list[Row]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda r: (-len(r.ids), r.sample_id)):
        at = next((i for i, left in enumerate(room) if left >= len(row.ids)), None)
        if at is None:
            found.append([])
            room.append(max_tokens)
            at = len(found) - 1
        found[at].append(row)
        room[at] -= len(row.ids)
    return found


def shares(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """The rows of each of ``count`` learners, about as many tokens for each: the longest first, each to whoever has
    least."""
    found: list[list[Row]] = [[] for _ in range(count)]
    tokens = [0] * count
    for row in sorted(rows, key=lambda r: (-len(r.ids), r.sample_id)):
        at = tokens.index(min(tokens))
        found[at].append(row)
        tokens[at] += len(row.ids)
    return found


def joined(rows: Sequence[Row]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and positions of a pack, shape [T]: positions start at 0 with every row, which tells them apart."""
    ids = np.concatenate([row.ids for row in rows]).astype(np.int64)
    return ids, np.concatenate([np.arange(len(row.ids), dtype=np.int64) for row in rows])
