"""The loop of ``forge.learn`` on vLLM: its rows are of the weights that were published to it, and it learns on them.

The server is one of its own, for the suite's serves a larger model. How well a policy learns is not asked here:
``tests/learn/test_learns.py`` does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from forge.learn.__main__ import run
from forge.learn.sizes import Sizes
from forge.learn.small import make, untied
from forge.policy import weights
from forge.storage.dataset import Dataset
from forge.trainer.metrics import read
from tests.vllm_server import serving

SIZES = Sizes(warm_sessions=6, warm_steps=1, batches=2, tasks=3, group=6, held_out=3, every=2)
"""A model that has read its text and was hardly taught: it is right about every second time."""
SAME = 1e-3
"""Nats: fp32 against fp32."""

pytestmark = [pytest.mark.vllm, pytest.mark.harness, pytest.mark.ray, pytest.mark.process, pytest.mark.timeout(1800)]


@pytest.mark.filterwarnings("default::DeprecationWarning")  # Ray's, of its own settings
async def test_the_loop_runs_on_vllm_with_weights_reloaded_live(tmp_path: Path) -> None:
    untied(make(tmp_path / "random", 1), tmp_path / "model")
    with serving(tmp_path / "model", tmp_path / "vllm.log") as url:
        (course,) = await run(tmp_path, "pi", [(0, False)], SIZES, print, url)
    folder = tmp_path / "seed-0"
    assert len(course.trained) == SIZES.batches
    digests = {
        int(path.name): weights.weight_digest(path) for path in (folder / "policy").iterdir() if path.name.isdecimal()
    }
    calls = [call for name in ("train", "eval") for call in Dataset(folder).calls(name) if call.status == "ok"]
    assert {call.policy_version_start for call in calls} == set(digests), "every version was served, and no other"
    assert all(call.policy_version_end == call.policy_version_start for call in calls)
    assert all(call.weight_digest == digests[call.policy_version_start] for call in calls if call.policy_version_start)
    lines = read(folder / "train" / "learn" / "metrics.jsonl")
    assert max(line["staleness_max"] for line in lines) == 0
    assert max(line["delta_log_prob_max"] for line in lines) < SAME
