"""The gap between recorded and own log probs: by hand, planted, and survived."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from forge.trainer.batch import Row  # noqa: E402
from forge.trainer.config import Correction, Hyper  # noqa: E402
from forge.trainer.correction import correct, gap  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from forge.trainer.loss import base_penalty  # noqa: E402

pytestmark = pytest.mark.model

RATIOS = [0.1, 0.6, 1.0, 1.9, 4.0, 9.0]


@pytest.mark.parametrize(
    ("correction", "weights", "touched"),
    [
        (Correction.TRUNCATED, [0.1, 0.6, 1.0, 1.9, 2.0, 2.0], [0, 0, 0, 0, 1, 1]),
        (Correction.ICEPOP, [0.0, 0.6, 1.0, 1.9, 4.0, 0.0], [1, 0, 0, 0, 0, 1]),
        (Correction.NONE, [1.0] * 6, [0] * 6),
    ],
)
def test_weights_by_hand(correction: Correction, weights: list[float], touched: list[int]) -> None:
    rollout = torch.full((6,), -1.5)
    found = correct(rollout + torch.tensor(RATIOS).log(), rollout, Hyper(correction=correction))
    assert found.weight.tolist() == pytest.approx(weights)
    assert found.touched.int().tolist() == touched


def test_the_gap_by_hand() -> None:
    found = gap(torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0]))
    up, down = math.exp(0.5), math.exp(-1.0)
    assert [float(each) for each in found] == pytest.approx(
        [2, 1.5, 0.5, (up - 0.5 - 1) + (down + 1.0 - 1), up + down, up**2 + down**2]
    )


def test_the_penalty_by_hand() -> None:
    now = torch.tensor([-1.0, -2.0], requires_grad=True)
    found = base_penalty(now, torch.tensor([-1.0, -1.5]))
    assert found.tolist() == pytest.approx([0.0, math.exp(0.5) - 1.5])
    found.sum().backward()
    assert now.grad.tolist() == pytest.approx([0.0, 1 - math.exp(0.5)])


@pytest.mark.parametrize("correction", [Correction.TRUNCATED, Correction.ICEPOP])
def test_a_planted_gap_of_three_tenths_is_told_and_survived(tiny_model: Path, correction: Correction) -> None:
    """A bandit: one prompt, one token, reward for one of 64. The recorded log probs lie 0.3 nats off, up and down by
    token as an engine's other arithmetic would have it; the reward passes 0.9 within 200 steps all the same."""
    learner = Learner(tiny_model, Hyper(lr=3e-3, correction=correction, micro_tokens=4096))
    learner.load()
    torch.set_num_threads(1)
    draws, prompt, wanted = np.random.default_rng(11), np.array([5, 9, 3], np.int32), 17
    rows = [Row(str(n), np.append(prompt, np.int32(n)), np.array([3]), np.zeros(1, np.float32), 1.0, 0.0, 1.0)
            for n in range(64)]  # fmt: skip
    seen = []
    for step in range(200):
        log_probs = np.concatenate(learner.log_probs(rows)).astype(np.float64)
        share = float(np.exp(log_probs[wanted]))
        if share > 0.9:
            break
        drawn = draws.choice(64, 32, p=np.exp(log_probs) / np.exp(log_probs).sum())
        rewards = (drawn == wanted).astype(float)
        batch = [
            replace(
                rows[token], sample_id=f"{step}-{place}", advantage=float(reward - rewards.mean()), weight=1 / 32,
                rollout_log_probs=np.array([log_probs[token] + (0.3 if token % 2 else -0.3)], np.float32),
            )
            for place, (token, reward) in enumerate(zip(drawn, rewards, strict=True))
        ]  # fmt: skip
        seen.append(learner.step(batch).delta_log_prob_mean)
    assert share > 0.9
    assert seen == pytest.approx([0.3] * len(seen), abs=0.05)


def test_nothing_is_told_of_a_gap_that_is_not_there(tiny_model: Path) -> None:
    learner = Learner(tiny_model, Hyper())
    learner.load()
    torch.set_num_threads(1)
    row = Row("a", np.arange(8, dtype=np.int32), np.arange(1, 8), np.zeros(7, np.float32), 0.7, 1.0, 1 / 7)
    stats = learner.step([replace(row, rollout_log_probs=learner.log_probs([row])[0])])
    assert stats.kl_rollout_k1 == pytest.approx(0, abs=1e-6)
    assert stats.kl_rollout_k3 == pytest.approx(0, abs=1e-6)
    assert stats.perplexity_ratio == pytest.approx(1, abs=1e-6)
    assert stats.effective_share == pytest.approx(1, abs=1e-6)
    assert (stats.corrected_fraction, stats.kl_base) == (0, 0)
    assert 0 < stats.entropy < math.log(64)
