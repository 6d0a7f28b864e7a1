"""What one step saw, summed over packs and learners. Sums only until the end, so that neither changes the numbers."""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from forge.trainer.config import StepStats
from forge.trainer.correction import Corrected, gap
from forge.trainer.loss import PolicyLoss

SUMS: Final = (
    *("tokens", "absolute", "k1", "k3", "weight", "square"),
    *("loss", "entropy", "ratio", "low", "high", "touched", "penalty"),
)
PEAKS: Final = ("ratio", "delta")


class Seen:
    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(len(SUMS), dtype=torch.float64, device=device)
        self._peaks = torch.zeros(len(PEAKS), dtype=torch.float64, device=device)

    def add(
        self,
        weights: Tensor,
        per_token: Tensor,
        entropy: Tensor,
        own: Tensor,
        rollout: Tensor,
        out: PolicyLoss | None = None,
        corrected: Corrected | None = None,
        penalty: Tensor | None = None,
    ) -> None:
        """One pack; ``own``: the learner's log probs that the recorded ones are held against. Tokens that weigh
        nothing are nobody's: a learner without rows of its own was given them."""
        real = weights > 0
        none = torch.zeros_like(own)
        each = (
            (per_token * weights).detach(),
            entropy,
            out.ratio if out else none + 1.0,
            out.clipped_low if out else none,
            out.clipped_high if out else none,
            corrected.touched if corrected else none,
            penalty.detach() if penalty is not None else none,
        )
        sums = [*gap(own[real], rollout[real]), *(value[real].double().sum() for value in each)]
        self._sums += torch.stack(sums)
        if real.any():
            peaks = torch.stack([each[2][real].max(), (own - rollout)[real].abs().max()])
            self._peaks = torch.maximum(self._peaks, peaks.double())

    def gather(self) -> None:
        """Over all learners."""
        if dist.is_initialized():
            dist.all_reduce(self._sums)
            dist.all_reduce(self._peaks, op=dist.ReduceOp.MAX)

    @property
    def loss(self) -> float:
        return float(self._sums[SUMS.index("loss")])

    @property
    def tokens(self) -> int:
        return int(self._sums[SUMS.index("tokens")])

    def stats(self, *, grad_norm: float, tokens_read: int, seconds: float) -> StepStats:
        total = dict(zip(SUMS, self._sums.tolist(), strict=True))
        peak = dict(zip(PEAKS, self._peaks.tolist(), strict=True))
        mean = {name: value / total["tokens"] for name, value in total.items()}
        return StepStats(
            loss=total["loss"],
            grad_norm=grad_norm,
            tokens=int(total["tokens"]),
            tokens_read=tokens_read,
            seconds=seconds,
            entropy=mean["entropy"],
            ratio_mean=mean["ratio"],
            ratio_max=peak["ratio"],
            clip_low_fraction=mean["low"],
            clip_high_fraction=mean["high"],
            delta_log_prob_mean=mean["absolute"],
            delta_log_prob_max=peak["delta"],
            kl_rollout_k1=mean["k1"],
            kl_rollout_k3=mean["k3"],
            perplexity_ratio=math.exp(mean["k1"]),
            effective_share=total["weight"] ** 2 / (total["tokens"] * total["square"]),
            corrected_fraction=mean["touched"],
            kl_base=mean["penalty"],
        )
