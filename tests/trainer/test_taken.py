"""A policy server that answers 200 to a publication and goes on with what it had, or with half of it, is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from forge.policy import weights  # noqa: E402
from forge.storage.errors import Untrainable  # noqa: E402
from forge.storage.records import Sample  # noqa: E402
from forge.trainer.config import Hyper, TrainConfig  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from forge.trainer.loop import Loop  # noqa: E402
from forge.trainer.metrics import Metrics, read  # noqa: E402
from forge.trainer.start import start_of  # noqa: E402
from tests.trainer.conftest import sample  # noqa: E402

pytestmark = pytest.mark.model

Reload = Callable[[Any, Path], Any]
"""What a server makes of its model when it is told to load a directory."""


def load(path: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(path)


def whole(_: Any, path: Path) -> Any:
    return load(path)


def nothing(old: Any, _: Path) -> Any:
    return old


def all_but_a_tied_output_layer(old: Any, path: Path) -> Any:
    """As vLLM on CPU does (0.32, seen)."""
    new, kept = load(path), old.lm_head.weight.detach().clone()
    new.lm_head.weight = torch.nn.Parameter(kept)
    return new


class Served:
    """Samples of what the server has, scored by it in half precision or not."""

    def __init__(self, model: Path, data: Path, reload: Reload, *, noise: float, batches: int) -> None:
        self._model, self._data, self._reload = load(model), data, reload
        self._noise, self._batches = noise, batches
        self._draws = np.random.default_rng(0)
        self._version = 0

    def __call__(self, batch: int, version: int) -> list[Sample] | None:
        if batch == self._batches:
            return None
        if version != self._version:
            published = weights.current(self._data)
            assert published is not None
            self._model, self._version = self._reload(self._model, published.path), version
        versions = {"policy_version_min": version, "policy_version_max": version}
        rows = [sample(f"{batch}-{n}", reward=float(n), mask=[1] * 24, **versions) for n in (0, 1)]
        return [replace(row, rollout_log_probs=self._scored(row)) for row in rows]

    def _scored(self, row: Sample) -> np.ndarray:
        ids = torch.from_numpy(np.concatenate((row.prompt_ids, row.response_ids)).astype(np.int64))
        with torch.no_grad():
            scores = self._model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
        found = scores[torch.arange(len(ids) - 1), ids[1:]].numpy()[-len(row.response_ids) :]
        return (found + self._draws.normal(0, self._noise, len(found))).astype(np.float32)


def trained(model: Path, data: Path, source: Served, *, resume: bool = False) -> None:
    config = TrainConfig(
        data=data, model=str(model), hyper=Hyper(lr=2e-2), out=data / "out", checkpoint_every=1, resume=resume,
        drawn_anew=True,
    )  # fmt: skip
    start = start_of(config, [], print)
    learner = Learner(start.base.path, config.hyper)
    learner.load()
    torch.set_num_threads(1)
    with Metrics(start.out, start.step) as metrics:
        Loop(config, start, learner, metrics, print, None).run(source)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_server_that_takes_what_is_published_is_believed(tiny_model: Path, tmp_path: Path, noise: float) -> None:
    trained(tiny_model, tmp_path, Served(tiny_model, tmp_path, whole, noise=noise, batches=4))
    assert [line["batch"] for line in read(tmp_path / "out" / "metrics.jsonl")] == [0, 1, 2, 3]


@pytest.mark.parametrize("reload", [nothing, all_but_a_tied_output_layer])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_one_that_does_not_is_named_at_its_next_batch(
    tiny_model: Path, tmp_path: Path, reload: Reload, noise: float
) -> None:
    with pytest.raises(Untrainable, match="does not serve version 1 as it was published") as refused:
        trained(tiny_model, tmp_path, Served(tiny_model, tmp_path, reload, noise=noise, batches=4))
    assert "--resume" in refused.value.hint
    current = weights.current(tmp_path)
    assert current is not None
    assert current.version == 1, "nothing that was learned from it is published"


def test_a_run_that_goes_on_remembers_how_it_was(tiny_model: Path, tmp_path: Path) -> None:
    """Its first batch is not the measure any more, which would be one of the wrong weights."""
    trained(tiny_model, tmp_path, Served(tiny_model, tmp_path, whole, noise=0.0, batches=2))
    shutil.copytree(tmp_path / "policy" / "1", tmp_path / "stale")
    source = Served(tmp_path / "stale", tmp_path, nothing, noise=0.0, batches=4)
    with pytest.raises(Untrainable, match="does not serve version 2"):
        trained(tiny_model, tmp_path, source, resume=True)
