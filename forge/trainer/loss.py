"""The policy loss on torch tensors, each formula with its source.

Knows no samples and no optimiser. Logits exist only at the positions that predict a trained token, a chunk at a
time, forward and backward: for 50,000 words one token's logits weigh 200 kB in fp32, which is what decides whether
a long row fits.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOG_RATIO_LIMIT: Final = 20.0
"""Log ratios are clamped to +-20 before exp (verl core_algos): beyond it fp32 says nothing and inf poisons a batch."""
LOGIT_CHUNK: Final = 256
"""Positions whose logits exist at one time."""


class PolicyLoss(NamedTuple):
    per_token: Tensor
    """To be weighted and summed, shape [K]."""
    ratio: Tensor
    """Detached, shape [K]."""
    clipped_low: Tensor
    """Where the lower clip took the gradient away, bool [K]."""
    clipped_high: Tensor


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> PolicyLoss:
    """``-min(r A, clip(r, 1 - low, 1 + high) A)`` with ``r = exp(log_prob - old)``.

    PPO, arXiv 1707.06347, equation 7; two clip bounds ("clip-higher"): DAPO, arXiv 2503.14476, section 3.1. ``old``:
    the learner's log probs before its update, where the gap to the recorded ones is corrected by a weight; else those
    recorded, whose ratio then also holds the engine's arithmetic and staleness ("bypass mode" in verl's rollout
    correction docs).
    """
    log_ratio = (log_probs - old_log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    per_token = -torch.minimum(ratio * advantages, bounded * advantages)
    fixed = ratio.detach()
    return PolicyLoss(
        per_token,
        fixed,
        (fixed < 1.0 - clip_low) & (advantages < 0),
        (fixed > 1.0 + clip_high) & (advantages > 0),
    )


def base_penalty(log_probs: Tensor, base_log_probs: Tensor) -> Tensor:
    """``exp(d) - d - 1`` with ``d = base - log_prob``, shape [K]: the k3 estimate of KL(policy || base) that GRPO adds,
    arXiv 2402.03300, equation 4; Schulman, "Approximating KL Divergence" (2020)."""
    d = (base_log_probs - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return d.exp() - d - 1.0


class Scored(NamedTuple):
    log_probs: Tensor
    """Shape [K]."""
    entropy: Tensor
    """Of each whole distribution, nats, detached, shape [K]."""


def score_tokens(hidden: Tensor, targets: Tensor, temperatures: Tensor, head: torch.nn.Module) -> Scored:
    """``log softmax(head(hidden) / temperature)[target]`` from hidden states [K, H].

    The logits are divided by the sampling temperature because the recorded log probs are those of the distribution
    sampled from (prime-rl does so per token); without it every ratio is wrong.
    """
    chunks = zip(*(torch.split(t, LOGIT_CHUNK) for t in (hidden, targets, temperatures)), strict=True)
    found = [checkpoint(_score_chunk, *chunk, head, use_reentrant=False) for chunk in chunks]
    return Scored(torch.cat([each[0] for each in found]), torch.cat([each[1] for each in found]))


def _score_chunk(hidden: Tensor, targets: Tensor, temperatures: Tensor, head: torch.nn.Module) -> tuple[Tensor, Tensor]:
    logits: Tensor = head(hidden) / temperatures.unsqueeze(1)
    normal = logits.logsumexp(dim=1)
    with torch.no_grad():
        likely = (logits - normal.unsqueeze(1)).exp()
        entropy = normal - (likely * logits).sum(1)
    return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - normal, entropy
