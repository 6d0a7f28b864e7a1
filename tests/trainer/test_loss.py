"""The loss against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from forge.trainer.loss import LOG_RATIO_LIMIT, clipped_policy_loss, score_tokens  # noqa: E402

pytestmark = pytest.mark.model


def test_clipped_loss_by_hand() -> None:
    """Six tokens, low 0.2, high 0.28: inside, above, below, for a good and for a bad session."""
    ratios = [1.1, 1.5, 0.5, 1.1, 1.5, 0.5]
    advantages = torch.tensor([1.0, 1.0, 1.0, -2.0, -2.0, -2.0])
    old = torch.full((6,), -1.0)
    new = (old + torch.tensor(ratios).log()).requires_grad_()
    out = clipped_policy_loss(new, old, advantages, clip_low=0.2, clip_high=0.28)
    # good: min(rA, clip(r)A) = 1.1, 1.28, 0.5; bad: -2.2, -3.0 (the worse counts), -1.6 (held at 0.8)
    assert out.per_token.tolist() == pytest.approx([-1.1, -1.28, -0.5, 2.2, 3.0, 1.6])
    assert out.clipped_high.tolist() == [False, True, False, False, False, False]
    assert out.clipped_low.tolist() == [False, False, False, False, False, True]
    out.per_token.sum().backward()
    # d(-rA)/d log p = -rA where the clip is not active, 0 where it is
    assert new.grad.tolist() == pytest.approx([-1.1, 0.0, -0.5, 2.2, 3.0, 0.0])


def test_a_wild_ratio_stays_finite() -> None:
    new = torch.tensor([0.0], requires_grad=True)
    out = clipped_policy_loss(new, torch.tensor([-500.0]), torch.tensor([-1.0]), clip_low=0.2, clip_high=0.28)
    assert out.per_token.item() == pytest.approx(math.exp(LOG_RATIO_LIMIT), rel=1e-5)
    out.per_token.sum().backward()
    assert math.isfinite(new.grad.item())


def test_temperature_divides_the_logits() -> None:
    """Two words with logits 0 and 2 at temperature 2: the second has e / (1 + e)."""
    head = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.0], [2.0]]))
    found = score_tokens(torch.ones(2, 1), torch.tensor([1, 1]), torch.tensor([2.0, 1.0]), head).log_probs
    assert found.tolist() == pytest.approx([math.log(math.e / (1 + math.e)), 2 - math.log(1 + math.e**2)])


def test_chunks_change_nothing() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(8, 30, bias=False).double()
    hidden = torch.randn(700, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 30, (700,))
    found = score_tokens(hidden, targets, torch.full((700,), 0.7, dtype=torch.float64), head).log_probs
    whole = (head(hidden) / 0.7).log_softmax(-1)[torch.arange(700), targets]
    assert torch.allclose(found, whole, atol=1e-12)
    (one,) = torch.autograd.grad(found.sum(), hidden)
    (two,) = torch.autograd.grad(whole.sum(), hidden)
    assert torch.allclose(one, two, atol=1e-12)
