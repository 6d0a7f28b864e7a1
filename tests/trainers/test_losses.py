"""Our loss, advantages and gap against verl's and TRL's own code, on random batches: ``make test-trainers``."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.trainers

torch = pytest.importorskip("torch")

from forge.trainer.advantage import group_advantages  # noqa: E402
from forge.trainer.config import Baseline, Correction, Hyper, Mean  # noqa: E402
from forge.trainer.correction import correct, gap  # noqa: E402
from forge.trainer.loss import base_penalty, clipped_policy_loss  # noqa: E402

SEEDS = range(20)
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
HUGE = 1e9
"""verl's dual clip, which is not ours, put out of reach."""


class Batch:
    """Log probs of four kinds for some sessions of unlike lengths, in float64, shape [B, T]."""

    def __init__(self, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        sessions, width = 5, 17
        self.mask = (torch.rand(sessions, width, generator=draws) < 0.6).double()
        self.mask[:, 0] = 1

        def log_probs(near: Any = None) -> Any:
            if near is None:
                return -3 * torch.rand(sessions, width, generator=draws, dtype=torch.float64)
            return near + 0.6 * torch.randn(sessions, width, generator=draws, dtype=torch.float64)

        self.rollout = log_probs()
        self.old = log_probs(self.rollout)
        self.now = log_probs(self.old).requires_grad_()
        self.base = log_probs(self.old)
        self.rewards = torch.rand(sessions, generator=draws, dtype=torch.float64).round(decimals=1)
        self.advantages = torch.randn(sessions, generator=draws, dtype=torch.float64)[:, None].expand(-1, width)

    def weights(self, mean: Mean) -> Any:
        """Of each token, as ``batch.rows_of`` gives them where a session is one row."""
        each = self.mask.sum(1, keepdim=True)
        return (1 / (len(self.mask) * each) if mean is Mean.SESSION else 1 / self.mask.sum()) * self.mask

    def loss(self, hyper: Hyper, mean: Mean) -> Any:
        out = clipped_policy_loss(self.now, self.old, self.advantages, **CLIP)
        per_token = out.per_token * correct(self.old, self.rollout, hyper).weight
        if hyper.kl:
            per_token = per_token + hyper.kl * base_penalty(self.now, self.base)
        return (per_token * self.weights(mean)).sum()


def same(ours: Any, theirs: Any, batch: Batch) -> None:
    """Value and gradient."""
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)
    one, two = (torch.autograd.grad(each, batch.now, retain_graph=True)[0] for each in (ours, theirs))
    assert torch.allclose(one, two, atol=1e-6)
    assert one.abs().max() > 1e-4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("mean", "mode"), [(Mean.SESSION, "seq-mean-token-mean"), (Mean.TOKEN, "token-mean")])
@pytest.mark.parametrize(
    ("correction", "threshold"), [(Correction.TRUNCATED, 2.0), (Correction.ICEPOP, "0.5_5.0"), (Correction.NONE, None)]
)
def test_verls_loss(seed: int, mean: Mean, mode: str, correction: Correction, threshold: Any) -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")

    class Config(SimpleNamespace):
        def get(self, name: str, default: object) -> object:
            return getattr(self, name, default)

    batch = Batch(seed)
    weights = None
    if threshold is not None:
        log_ratio = batch.old - batch.rollout
        weights, _ = helper.compute_rollout_correction_weights(log_ratio, batch.mask, rollout_is_threshold=threshold)
    config = Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=HUGE, global_batch_info={})
    theirs, _ = core_algos.compute_policy_loss_vanilla(
        batch.old, batch.now, batch.advantages, batch.mask, mode, config, rollout_is_weights=weights
    )
    same(batch.loss(Hyper(correction=correction), mean), theirs, batch)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("mean", "kind"), [(Mean.SESSION, "grpo"), (Mean.TOKEN, "bnpo"), (Mean.TOKEN, "dapo")])
@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_trls_loss(seed: int, mean: Mean, kind: str, kl: float) -> None:
    """Its trainer's own method, on a stand-in that holds what it reads of a trainer."""
    trl = pytest.importorskip("trl")
    batch = Batch(seed)
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **named: (batch.now, torch.zeros_like(batch.now), None),
        aux_loss_enabled=False, top_entropy_quantile=1.0, off_policy_mask_threshold=None, beta=kl, loss_type=kind,
        importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.28, use_vllm=True,
        vllm_importance_sampling_correction=True, current_gradient_accumulation_steps=1,
        args=SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
        model=SimpleNamespace(training=True), _entropy_bonus_enabled=False, use_adaptive_entropy=False,
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda tensor: tensor, reduce=lambda tensor, reduction: tensor
        ),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
    )  # fmt: skip
    shape = batch.mask.shape
    inputs = {
        "prompt_ids": torch.zeros(shape[0], 1, dtype=torch.long), "prompt_mask": torch.ones(shape[0], 1),
        "completion_ids": torch.zeros(shape, dtype=torch.long), "completion_mask": batch.mask,
        "advantages": batch.advantages[:, 0], "old_per_token_logps": batch.old, "ref_per_token_logps": batch.base,
        "importance_sampling_ratio": correct(batch.old, batch.rollout, Hyper()).weight,
        "num_items_in_batch": batch.mask.sum(),
    }  # fmt: skip
    same(batch.loss(Hyper(kl=kl), mean), trl.GRPOTrainer._compute_loss(trainer, None, inputs), batch)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("baseline", list(Baseline))
def test_verls_advantages(seed: int, baseline: Baseline) -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    batch = Batch(seed)
    rewards = torch.zeros_like(batch.mask)
    rewards[:, 0] = batch.rewards
    index = np.array(["g"] * len(rewards), dtype=object)
    if baseline is Baseline.LEAVE_ONE_OUT:
        theirs, _ = core_algos.compute_rloo_outcome_advantage(rewards, batch.mask, index)
    else:
        theirs, _ = core_algos.compute_grpo_outcome_advantage(
            rewards, batch.mask, index, norm_adv_by_std_in_grpo=baseline is Baseline.STD
        )
    assert group_advantages(batch.rewards.tolist(), baseline) == pytest.approx(theirs[:, 0].tolist(), abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_verls_gap(seed: int) -> None:
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    batch = Batch(seed)
    told = batch.mask == 1
    ours = gap(batch.old[told], batch.rollout[told])
    theirs = helper.compute_offpolicy_metrics(batch.old, batch.rollout, batch.mask)
    assert float(ours.k1 / ours.tokens) == pytest.approx(theirs["kl"], abs=1e-6)
    assert float(ours.k3 / ours.tokens) == pytest.approx(theirs["k3_kl"], abs=1e-6)
