"""From one row of logits to one sampled id and the log probs of the distribution it was drawn from.

Order as vLLM has it: grammar, temperature, min_p, top_k, top_p. Temperature 0 takes the best id and reports the
log softmax of the logits as they are. Not obvious: a draw is one uniform number through the cumulative sum, from a
generator of the request's own, so a seed gives the same ids whatever else shares the batch.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
"""Temperatures under this are greedy, as in vLLM: dividing by them overflows."""
MINUS_INFINITY = -9999.0
"""What JSON can hold of the log prob of an id that could not be drawn."""


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 or -1: off."""
    min_p: float = 0.0
    seed: int | None = None
    top_logprobs: int = 0


class Drawn(NamedTuple):
    id: int
    log_prob: float
    top: list[tuple[int, float]]
    """The most likely ids and their log probs, best first."""


class Scored(NamedTuple):
    """One id of a prompt, and what the model made of it: of the logits as they are, whatever the temperature."""

    id: int
    log_prob: float
    rank: int
    """1: the likeliest."""
    top: list[tuple[int, float]]


def score(logits: Tensor, ids: list[int], top: int) -> list[Scored]:
    """``logits`` is [len(ids), vocab], each row what was said of the id with its number."""
    log_probs = torch.log_softmax(logits, -1)
    own = log_probs.gather(1, torch.tensor(ids)[:, None])
    ranks = (log_probs > own).sum(-1) + 1
    best = torch.topk(log_probs, top)
    several = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        Scored(index, log_prob, rank, list(zip(*row, strict=True)))
        for index, log_prob, rank, row in zip(ids, own[:, 0].tolist(), ranks.tolist(), several, strict=True)
    ]


@dataclass(slots=True)
class Sampler:
    """The sampling state of one request."""

    sampling: Sampling
    draws: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.draws = random.Random(self.sampling.seed)

    def draw(self, logits: Tensor, allowed: Tensor | None) -> Drawn:
        """``logits`` is [vocab]; ``allowed`` a bool mask of the ids that the grammar lets through."""
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -math.inf)
        greedy = self.sampling.temperature < GREEDY_BELOW
        log_probs = torch.log_softmax(logits if greedy else self._shape(logits / self.sampling.temperature), -1)
        chosen = int(log_probs.argmax()) if greedy else self._pick(log_probs)
        top: list[tuple[int, float]] = []
        if self.sampling.top_logprobs:
            best = torch.topk(log_probs, min(self.sampling.top_logprobs, len(log_probs)))
            top = [
                (i, max(p, MINUS_INFINITY)) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            ]
        return Drawn(chosen, float(log_probs[chosen]), top)

    def _pick(self, log_probs: Tensor) -> int:
        cumulative = log_probs.double().exp().cumsum(0)
        point = self.draws.random() * float(cumulative[-1])
        # right=True steps over ids of probability 0, also when the point falls exactly on a boundary
        found = int(torch.searchsorted(cumulative, point, right=True))
        return min(found, int(cumulative.argmax()))

    def _shape(self, logits: Tensor) -> Tensor:
        s = self.sampling
        if s.min_p > 0:
            logits = logits.masked_fill(logits < logits.max() + math.log(s.min_p), -math.inf)
        if 0 < s.top_k < len(logits):
            logits = logits.masked_fill(logits < torch.topk(logits, s.top_k).values[-1], -math.inf)
        if s.top_p < 1:
            ordered, index = logits.sort(descending=True)
            mass = ordered.softmax(-1)
            # an id is kept while the mass before it is under top_p, so the best one always is
            cut = mass.cumsum(-1) - mass >= s.top_p
            cut[0] = False
            logits = logits.masked_fill(torch.empty_like(cut).scatter_(0, index, cut), -math.inf)
        return logits
