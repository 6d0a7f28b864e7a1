"""The learner's gradient against a naive reading of the formulas, finite differences and itself cut otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from forge.policy.weights import weight_digest  # noqa: E402
from forge.storage.errors import BadInput  # noqa: E402
from forge.trainer.advantage import select  # noqa: E402
from forge.trainer.batch import Row, rows_of  # noqa: E402
from forge.trainer.config import Baseline, Correction, Hyper  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from tests.trainer.conftest import MakeSample  # noqa: E402

pytestmark = pytest.mark.model

CLIP = {"clip_low": 0.2, "clip_high": 0.28, "correction": Correction.NONE}


def loaded(model: Path, hyper: Hyper) -> Learner:
    learner = Learner(model, hyper)
    learner.load()
    torch.set_num_threads(1)  # on a busy machine threads cost such small tensors a hundredfold
    return learner


@pytest.fixture
def rows(make_sample: MakeSample) -> list[Row]:
    """Three sessions of a group, one of them in two rows; gaps in the masks; two temperatures."""
    samples = [
        make_sample("a", mask=[1, 1, 0, 0, 1, 1, 1], reward=1.0),
        make_sample("b", 0, mask=[1, 1], reward=0.0, temperature=0.7),
        make_sample("b", 1, mask=[0, 0, 1, 0, 1], reward=0.0, temperature=0.7),
        make_sample("c", mask=[1] * 12, reward=0.5),
    ]
    return rows_of(select(samples, version=0, max_staleness=0, baseline=Baseline.STD))


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in learner.scorer.parameters()]).double()


def naive_loss(model: torch.nn.Module, rows: list[Row]) -> torch.Tensor:
    """Session by session, token by token, whole logits, no batch."""
    sessions: dict[str, list[Row]] = {}
    for row in rows:
        sessions.setdefault(row.sample_id.split("-")[0], []).append(row)
    total = torch.zeros(())
    for session in sessions.values():
        summed, count = torch.zeros(()), 0
        for row in session:
            ids = torch.from_numpy(row.ids.astype(np.int64))[None]
            logits = model(input_ids=ids, use_cache=False).logits[0] / row.temperature
            for place, old in zip(row.places, row.rollout_log_probs, strict=True):
                now = logits[place - 1].log_softmax(-1)[row.ids[place]]
                ratio = torch.exp(now - float(old))
                gain = torch.minimum(ratio * row.advantage, ratio.clamp(0.8, 1.28) * row.advantage)
                summed, count = summed - gain, count + 1
        total = total + summed / count
    return total / len(sessions)


def test_loss_and_gradient_equal_the_naive_reading(tiny_model: Path, rows: list[Row]) -> None:
    learner = loaded(tiny_model, Hyper(micro_tokens=40, **CLIP))
    seen = learner.backward(rows)
    found = gradient(learner)
    learner.scorer.zero_grad()
    expected = naive_loss(learner.scorer.model, rows)
    expected.backward()
    assert seen.loss == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(found, gradient(learner), atol=1e-6)
    assert seen.tokens == 5 + 4 + 12
    assert found.abs().max() > 1e-3


@pytest.mark.parametrize("micro_tokens", [1, 17, 33, 1000])
def test_micro_batches_do_not_change_the_gradient(tiny_model: Path, rows: list[Row], micro_tokens: int) -> None:
    whole, cut = (loaded(tiny_model, Hyper(micro_tokens=n)) for n in (10_000, micro_tokens))
    one = whole.backward(rows).loss
    two = cut.backward(rows).loss
    assert one == pytest.approx(two, abs=1e-6)
    assert torch.allclose(gradient(whole), gradient(cut), atol=1e-6)


def test_gradient_equals_finite_differences(tmp_path: Path, rows: list[Row]) -> None:
    """On a GPT-2, which computes all of itself in the precision it is given, and has dropout to turn off."""
    torch.manual_seed(5)
    config = transformers.GPT2Config(
        vocab_size=64, n_embd=8, n_layer=1, n_head=2, n_positions=32, initializer_range=0.3,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    learner = loaded(tmp_path, Hyper())
    learner.scorer.double()
    rows = [replace(row, anchor=found) for row, found in zip(rows, learner.log_probs(rows), strict=True)]
    learner.backward(rows)
    generator, step = torch.Generator().manual_seed(3), 1e-6
    for parameter in learner.scorer.parameters():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        slope = float((parameter.grad * direction).sum())
        losses = []
        for move in (step, -2 * step):
            with torch.no_grad():
                parameter += move * direction
            losses.append(loss_at(learner, rows))
        with torch.no_grad():
            parameter += step * direction
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def loss_at(learner: Learner, rows: list[Row]) -> float:
    kept = [p.grad.clone() for p in learner.scorer.parameters()]
    loss = learner.backward(rows).loss
    for parameter, before in zip(learner.scorer.parameters(), kept, strict=True):
        parameter.grad = before
    return loss


def test_tokens_under_mask_zero_do_not_matter(tiny_model: Path, make_sample: MakeSample) -> None:
    """Their log probs are not even read: NaN before, anything after."""
    rows = [make_sample("a", mask=[1, 0, 1], reward=1.0), make_sample("b", mask=[1, 1, 1], reward=0.0)]
    other = [
        replace(rows[0], rollout_log_probs=np.array([*rows[0].rollout_log_probs[:1], -9, -1], np.float32)),
        rows[1],
    ]
    other[0].rollout_log_probs[2] = rows[0].rollout_log_probs[2]
    gradients = []
    for samples in (rows, other):
        learner = loaded(tiny_model, Hyper())
        learner.backward(rows_of(select(samples, version=0, max_staleness=0, baseline=Baseline.STD)))
        gradients.append(gradient(learner))
    assert torch.equal(*gradients)


def test_a_step_favours_what_was_rewarded(tiny_model: Path, rows: list[Row]) -> None:
    learner = loaded(tiny_model, Hyper(lr=1e-3))
    on_policy = [
        replace(row, rollout_log_probs=found) for row, found in zip(rows, learner.log_probs(rows), strict=True)
    ]
    stats = learner.step(on_policy)
    assert stats.ratio_mean == pytest.approx(1, abs=1e-5)
    assert stats.delta_log_prob_max < 1e-5
    assert stats.clip_low_fraction == stats.clip_high_fraction == 0
    assert stats.grad_norm > 0
    assert (stats.tokens, stats.tokens_read) == (21, sum(len(row.ids) for row in rows))
    now = learner.log_probs(on_policy)
    moved = [float((new - row.rollout_log_probs).sum()) for row, new in zip(on_policy, now, strict=True)]
    assert sum(m * row.advantage for m, row in zip(moved, rows, strict=True)) > 0
    assert learner.step(on_policy).loss < stats.loss


def test_saved_weights_are_a_whole_model_directory(tiny_model: Path, rows: list[Row], tmp_path: Path) -> None:
    learner = loaded(tiny_model, Hyper(lr=1e-3))
    learner.step(rows)
    learner.save(tmp_path / "new")
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= names
    assert weight_digest(tmp_path / "new") != weight_digest(tiny_model)
    again = loaded(tmp_path / "new", Hyper())
    for one, two in zip(again.log_probs(rows), learner.log_probs(rows), strict=True):
        assert np.array_equal(one, two)


def test_a_model_that_bends_its_logits_is_refused(tmp_path: Path) -> None:
    config = transformers.GraniteConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, logits_scaling=4.0, initializer_range=0.4,
    )  # fmt: skip
    transformers.GraniteForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="granite"):
        loaded(tmp_path, Hyper())


def test_a_directory_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no model") as caught:
        loaded(tmp_path, Hyper())
    assert "--model" in caught.value.hint
