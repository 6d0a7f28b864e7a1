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

TIMES: Final = 5.0
"""By which batches of one engine do not differ: the mean over a batch moves by some tens of percent."""
FLOOR: Final = 0.01
"""Nats. What is below teaches next to nothing wrong, whatever it comes from."""


class Taken:
    def __init__(self, lines: Sequence[dict[str, Any]]) -> None:
        """``lines``: of the run's metrics, as far as it came."""
        first = next((line for line in lines if line["staleness_max"] == 0), None)
        self._usual: float | None = None if first is None else first["delta_log_prob_mean"]
        self._version: int | None = None if first is None else first["version"]

    def look(self, version: int, stats: StepStats) -> None:
        """``stats``: of the first step on a batch that only weights of ``version`` sampled, as the publisher knows it.
        Raises ``Untrainable`` if they did not."""
        found = stats.delta_log_prob_mean
        if self._usual is None:
            self._usual, self._version = found, version
        if version == self._version or found <= max(FLOOR, TIMES * self._usual):
            return
        raise Untrainable(
            f"the policy server does not serve version {version} as it was published: log probs of its samples are "
            f"{found:.2g} nats off the learner's on average, and were {self._usual:.2g} before it was to load new ones",
            "start the server on the newest weights, then go on with --resume; if it has an output layer that is tied "
            "to the embeddings, untie the model first: docs/training.md says how",
        )
