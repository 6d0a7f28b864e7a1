"""The whole loop, small: a policy that learns in the real harness, and a control whose rewards are dealt at random."""

from __future__ import annotations

import subprocess
import sys
from itertools import islice
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM

from forge.learn.__main__ import COURSE
from forge.learn.experiment import Course
from forge.learn.pretrain import TOOLS
from forge.learn.sizes import SMALL
from forge.learn.small import END
from forge.learn.tasks import RIGHT, asked, call, instances
from forge.policy import weights
from forge.policy.template import Text
from forge.storage.dataset import Dataset
from forge.trainer.metrics import read

pytestmark = [pytest.mark.harness, pytest.mark.ray, pytest.mark.process, pytest.mark.model]
INSTANCES = 48
TIMEOUT_S = 1800
LEARNER, CONTROL = "seed-0", "seed-0-shuffled"


@pytest.mark.timeout(TIMEOUT_S)
def test_it_learns_and_the_control_does_not(tmp_path: Path) -> None:
    """Told by how likely the right call is on held-out instances, which no draw blurs; never by time."""
    command = [sys.executable, "-m", "forge.learn", "--small", "--seed", "0", "--data", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    before, after, dealt = (rightness(tmp_path / name) for name in ("taught", LEARNER, CONTROL))
    print(f"the right call's mean probability: {before:.3f}, then {after:.3f}, of the control {dealt:.3f}")
    assert before < 0.45
    assert after > before + 0.1
    assert after > dealt + 0.1
    for name in (LEARNER, CONTROL):
        was_the_loop(tmp_path / name)


def was_the_loop(folder: Path) -> None:
    """Each batch was sampled from the weights before it, and the learner's log probs are those that were recorded."""
    course = msgspec.json.decode((folder / COURSE).read_bytes(), type=Course)
    assert len(course.trained) == SMALL.batches
    assert [point.batch for point in course.held_out] == [0, SMALL.batches]
    calls = [call for call in Dataset(folder).calls("train") if call.status == "ok"]
    assert len({call.policy_version_start for call in calls}) > 1, "new weights were served"
    lines = read(folder / "train" / "learn" / "metrics.jsonl")
    assert max(line["staleness_max"] for line in lines) == 0
    assert max(line["delta_log_prob_max"] for line in lines) < 1e-3, "one model, two programs"


def rightness(data: Path) -> float:
    """The mean probability of the right call, as the newest weights have it."""
    newest = weights.current(data)
    assert newest is not None
    text, model = Text(newest.path), AutoModelForCausalLM.from_pretrained(newest.path)
    found = []
    for each in islice(instances(0, held_out=True), INSTANCES):
        named = asked(each.prompt)
        assert named is not None
        prompt = text.encode(text.render([{"role": "user", "content": each.prompt, "tool_calls": []}], TOOLS))
        said = text.encode(call(RIGHT[each.request], named) + END)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
        found.append(float((-torch.nn.functional.cross_entropy(logits, torch.tensor(said), reduction="sum")).exp()))
    return fmean(found)
