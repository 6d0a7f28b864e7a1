"""Whether a policy server took the weights that were published to it, told by what it sampled since.

A server may answer that it has loaded them and go on with others, or with some of them: one that packs an output layer
which is tied to the embeddings may keep the first one over a reload. Nothing that it says shows it; that its log probs
of fresh samples are not the learner's own does. The non-obvious fact: how far apart the two are when all is well is the
engine's matter (its precision, its kernels), so the measure is the run's own first batch, sampled before anything new
was published. That batch may be one of an earlier start of the run: its line of the metrics says it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from forge.storage.errors import Untrainable
from forge.trainer.config import StepStats

EXACT: Final = 1e-3
"""Nats. An engine none of whose first log probs lies further off computes as exactly as the learner, and goes on so."""
TIMES: Final = 5.0
"""By which batches of any other engine do not differ: the mean over a batch moves by some tens of percent."""
FLOOR: Final = 0.05
"""Nats, of those: a first batch of tokens that were never in doubt says too little of the noise of others."""


class Taken:
    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        """``lines``: of the run's metrics, as far as it came."""
        self._first: tuple[int, float, float] | None = None
        for line in lines:
            if line["staleness_max"] == 0:
                self._first = line["version"], line["delta_log_prob_mean"], line["delta_log_prob_max"]
                break

    def look(self, version: int, stats: StepStats) -> None:
        """``stats``: of the first step on a batch that only weights of ``version`` sampled, as the publisher knows it.
        Raises ``Untrainable`` if they did not."""
        if self._first is None:
            self._first = version, stats.delta_log_prob_mean, stats.delta_log_prob_max
        before, usual, most = self._first
        limit = EXACT if most < EXACT else max(FLOOR, TIMES * usual)
        if version == before or stats.delta_log_prob_mean <= limit:
            return
        raise Untrainable(
            f"the policy server does not serve version {version} as it was published: log probs of its samples are "
            f"{stats.delta_log_prob_mean:.2g} nats off the learner's on average, and were {usual:.2g} before it was to "
            "load new ones",
            "start the server on the newest weights, then go on with --resume; if it has an output layer that is tied "
            "to the embeddings, untie the model first: docs/training.md says how",
        )
