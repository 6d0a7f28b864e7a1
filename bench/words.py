"""A stand-in for a tokenizer and a model: token ids, the text they stand for, and log probabilities, all by a seed.

Ids follow a Zipf law over a vocabulary of the usual size. The one non-obvious fact: frequent tokens have low ids, as
merges are learned in order of frequency, but not strictly; how well ids compress depends on that.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]

SIZE: Final = 151_643
EXPONENT: Final = 1.05
ORDER_NOISE: Final = 0.7
"""Spread of the logarithm by which a token's id departs from its rank."""
NEAR_ZERO: Final = 0.6
"""Share of sampled tokens that the model was sure of."""
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class Words:
    """Draws ids, log probabilities and text. The same seed gives the same draws in the same order."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        weights = 1.0 / np.arange(1, SIZE + 1) ** EXPONENT
        self._shares = weights / weights.sum()
        self._cumulative = np.cumsum(self._shares)
        ranks = np.arange(SIZE)
        self._id_of_rank = np.argsort(ranks * self._rng.lognormal(0.0, ORDER_NOISE, SIZE)).argsort().astype(np.int32)
        lengths = self._rng.integers(1, 7, SIZE)
        letters = self._rng.choice(list(LETTERS), int(lengths.sum()))
        self.pieces = [" " + "".join(part) for part in np.split(letters, np.cumsum(lengths)[:-1])]

    @property
    def bits_per_id(self) -> float:
        """Entropy of one id, order 0, in bits: no code that knows nothing of the order of ids can be shorter."""
        return float(-(self._shares * np.log2(self._shares)).sum())

    def ids(self, count: int) -> Ids:
        ranks = np.searchsorted(self._cumulative, self._rng.random(count)).clip(0, SIZE - 1)
        found: Ids = self._id_of_rank[ranks]
        return found

    def log_probs(self, count: int) -> LogProbs:
        sure = self._rng.random(count) < NEAR_ZERO
        small = 10.0 ** self._rng.uniform(-6.0, -2.0, count)
        return np.where(sure, -small, -self._rng.exponential(0.9, count)).astype(np.float32)

    def count(self, mean: int) -> int:
        """A length around ``mean``, within half and one and a half of it."""
        return int(self._rng.integers(mean // 2, mean + mean // 2 + 1))

    def text(self, ids: Ids) -> str:
        pieces = self.pieces
        return "".join([pieces[i] for i in ids.tolist()])
