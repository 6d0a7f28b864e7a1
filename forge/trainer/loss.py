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

    PPO, arXiv 1707.06347, equation 7; two clip bounds: DAPO, arXiv 2503.14476, section 3.1. ``old`` are the log probs
    recorded when the token was sampled, so the ratio also corrects for the engine's arithmetic and for staleness
    ("bypass mode" in verl's rollout correction docs).
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


def token_log_probs(hidden: Tensor, targets: Tensor, temperatures: Tensor, head: torch.nn.Module) -> Tensor:
    """``log softmax(head(hidden) / temperature)[target]``, shape [K], from hidden states [K, H].

    The logits are divided by the sampling temperature because the recorded log probs are those of the distribution
    sampled from (prime-rl does so per token); without it every ratio is wrong.
    """
    chunks = zip(*(torch.split(t, LOGIT_CHUNK) for t in (hidden, targets, temperatures)), strict=True)
    return torch.cat([checkpoint(_chunk_log_probs, *chunk, head, use_reentrant=False) for chunk in chunks])


def _chunk_log_probs(hidden: Tensor, targets: Tensor, temperatures: Tensor, head: torch.nn.Module) -> Tensor:
    logits: Tensor = head(hidden) / temperatures.unsqueeze(1)
    return logits.gather(1, targets.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=1)
