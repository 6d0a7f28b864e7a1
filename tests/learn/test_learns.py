"""The whole loop learns: a small policy in the real harness, and a control whose rewards are dealt out at random."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forge.learn.__main__ import run
from forge.learn.sizes import SMALL
from forge.storage.dataset import Dataset
from forge.trainer.metrics import read


@pytest.mark.harness
@pytest.mark.ray
@pytest.mark.process
@pytest.mark.timeout(1800)
async def test_it_learns_and_the_control_does_not(tmp_path: Path) -> None:
    """By reward on held-out instances, never by time."""
    learned, control = await run(tmp_path, "pi", [(0, False), (0, True)], SMALL, print)
    assert learned.held_out[0].reward < 0.5
    assert learned.held_out[-1].reward > learned.held_out[0].reward + 0.25
    assert learned.held_out[-1].reward > control.held_out[-1].reward + 0.25
    for each in (learned, control):
        assert len(each.trained) == SMALL.batches
    folder = tmp_path / "seed-0"
    sampled = {call.policy_version_start for call in Dataset(folder).calls("train") if call.status == "ok"}
    assert len(sampled) > 1, "every batch was sampled from the weights before it"
    lines = read(folder / "train" / "learn" / "metrics.jsonl")
    assert max(line["delta_log_prob_max"] for line in lines) < 1e-3, "one model, two programs"
    assert max(line["staleness_max"] for line in lines) == 0
