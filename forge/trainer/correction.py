"""The gap between the log probs that were recorded and the learner's own: how it is weighed, and how it is told.

An engine computes in other precision and other kernels than the learner, and may have sampled with older weights. The
recorded log probs are those of the policy that acted; the learner's own, before it updates, are those that the clip is
about. Pure torch; knows no rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forge.trainer.config import Correction, Hyper
from forge.trainer.loss import LOG_RATIO_LIMIT


class Corrected(NamedTuple):
    weight: Tensor
    """Of each token's loss, without gradient, shape [K]."""
    touched: Tensor
    """Where the weight is not the plain ratio, bool [K]."""


def correct(old: Tensor, rollout: Tensor, hyper: Hyper) -> Corrected:
    """The weight ``w = exp(old - rollout)`` of each token, bounded; ``old``: the learner's, before its update.

    - ``truncated``: ``min(w, cap)``: truncated importance sampling, Yao et al., "Your Efficient RL Framework Secretly
      Brings You Off-Policy RL Training" (2025); verl's ``rollout_is: token`` with its threshold 2;
    - ``icepop``: ``w`` where ``low <= w <= high``, else 0: IcePop, arXiv 2510.18855, section 3.2;
    - ``none``: 1.
    """
    if hyper.correction is Correction.NONE:
        return Corrected(torch.ones_like(old), torch.zeros_like(old, dtype=torch.bool))
    weight = (old - rollout).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    if hyper.correction is Correction.TRUNCATED:
        return Corrected(weight.clamp(max=hyper.cap), weight > hyper.cap)
    outside = (weight < hyper.pop_low) | (weight > hyper.pop_high)
    return Corrected(weight.masked_fill(outside, 0.0), outside)


class Gap(NamedTuple):
    """Sums over tokens, to be added over packs and learners; ``d = own - recorded``, its exponential the weight."""

    tokens: Tensor
    absolute: Tensor
    k1: Tensor
    """``-d``: Monte Carlo KL(rollout || trainer), Schulman's "Approximating KL Divergence" (2020)."""
    k3: Tensor
    """``exp(d) - d - 1``: the same with less variance and never negative."""
    weight: Tensor
    square: Tensor
    """Of the weight: (sum w)^2 / (n sum w^2) is the effective share of the sample (Kish 1965)."""


def gap(own: Tensor, rollout: Tensor) -> Gap:
    d = own.double() - rollout.double()
    weight = d.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    ones = torch.ones_like(d)
    return Gap(*(each.sum() for each in (ones, d.abs(), -d, weight - d - 1.0, weight, weight**2)))
