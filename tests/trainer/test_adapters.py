"""Low-rank adapters: only they move, what is published is merged, and the adapter is a small file of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

from forge.policy.weights import Published, weight_digest  # noqa: E402
from forge.proxy.upstreams.plan import Adapter  # noqa: E402
from forge.storage.errors import BadInput  # noqa: E402
from forge.trainer.batch import Row  # noqa: E402
from forge.trainer.config import Hyper  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from forge.trainer.publish import adapter_of  # noqa: E402

pytestmark = pytest.mark.model


def learner(model: Path, **changes: object) -> Learner:
    found = Learner(model, Hyper(lr=1e-2, lora_rank=2, **changes))  # type: ignore[arg-type]
    found.load()
    torch.set_num_threads(1)
    return found


@pytest.fixture
def rows() -> list[Row]:
    def row(name: str, first: int, advantage: float) -> Row:
        ids = (np.arange(9, dtype=np.int32) * 5 + first) % 64
        return Row(name, ids, np.arange(3, 9), np.full(6, -3.0, np.float32), 1.0, advantage, 1 / 12)

    return [row("good", 0, 1.0), row("bad", 1, -1.0)]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's, of transformers
def test_what_is_published_says_what_the_learner_says(tiny_model: Path, rows: list[Row], tmp_path: Path) -> None:
    adapted = learner(tiny_model)
    before = adapted.log_probs(rows)
    assert np.allclose(np.concatenate(before), np.concatenate(plain(tiny_model, rows)), atol=1e-6)
    adapted.step(rows)
    adapted.save(tmp_path / "new")
    after = adapted.log_probs(rows)
    assert not np.allclose(np.concatenate(before), np.concatenate(after), atol=1e-3)
    assert np.allclose(np.concatenate(after), np.concatenate(plain(tmp_path / "new", rows)), atol=1e-5)
    assert weight_digest(tmp_path / "new") != weight_digest(tiny_model)
    adapter = tmp_path / "new" / "adapter"
    assert {path.name for path in adapter.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    named = adapter_of(Published(1, tmp_path / "new", "", ""))
    assert named == Adapter(path=str(adapter.resolve()), base=str(tiny_model.resolve()))
    assert adapter_of(Published(0, tiny_model, "", "")) is None
    model = peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(tiny_model), adapter)
    with torch.no_grad():
        ids = torch.from_numpy(rows[0].ids.astype(np.int64))[None]
        found = model(input_ids=ids).logits[0, 2:-1].log_softmax(-1).gather(1, ids[0, 3:, None])[:, 0]
    assert np.allclose(found.numpy(), after[0], atol=1e-5)


def plain(model: Path, rows: list[Row]) -> list[np.ndarray]:
    found = Learner(model, Hyper())
    found.load()
    return list(found.log_probs(rows))


def test_the_penalty_is_against_the_model_without_adapters(tiny_model: Path, rows: list[Row]) -> None:
    adapted = learner(tiny_model, kl=0.5)
    first = adapted.step(rows)
    assert first.kl_base == pytest.approx(0, abs=1e-6)
    whole = plain(tiny_model, rows)
    d = np.concatenate(whole).astype(np.float64) - np.concatenate(adapted.log_probs(rows))
    assert adapted.step(rows).kl_base == pytest.approx(float(np.mean(np.exp(d) - d - 1)), rel=1e-3)


def test_a_checkpoint_of_adapters_is_small_and_goes_on(tiny_model: Path, rows: list[Row], tmp_path: Path) -> None:
    one, other = learner(tiny_model), learner(tiny_model, seed=1)
    one.step(rows)
    one.keep(tmp_path)
    other.go_on(tmp_path)
    assert [one.step(rows).loss for _ in range(2)] == [other.step(rows).loss for _ in range(2)]
    whole = Learner(tiny_model, Hyper())
    whole.load()
    with pytest.raises(BadInput, match="another model"):
        whole.go_on(tmp_path)


def test_a_model_that_no_adapter_fits_is_named(tmp_path: Path, rows: list[Row]) -> None:
    config = transformers.GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=2, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(BadInput, match="no layers that an adapter fits"):
        learner(tmp_path)
