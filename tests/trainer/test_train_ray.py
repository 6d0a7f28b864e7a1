"""``forge train`` from Parquet to published weights, through a real Ray cluster and a tiny random model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from forge.policy import weights  # noqa: E402
from forge.storage.errors import Exit  # noqa: E402
from forge.storage.parts import run_dir, table_dir, write_part  # noqa: E402
from forge.storage.records import Sample, Session  # noqa: E402
from forge.trainer.config import Hyper, Objective, TrainConfig  # noqa: E402
from forge.trainer.learner import Learner  # noqa: E402
from forge.trainer.loop import Loop  # noqa: E402
from forge.trainer.metrics import Metrics, read  # noqa: E402
from forge.trainer.start import start_of  # noqa: E402
from tests.trainer.conftest import MakeSample  # noqa: E402

pytestmark = pytest.mark.process

TIMEOUT_S = 240


@pytest.fixture
def samples(make_sample: MakeSample, tiny_model: Path) -> list[Sample]:
    """Two groups of which one has spread, log probs from the model itself."""
    made = [
        make_sample("a", 0, reward=1.0, mask=[1, 1, 0, 1]),
        make_sample("a", 1, reward=1.0, mask=[1, 1]),
        make_sample("b", reward=0.0, mask=[1] * 8),
        make_sample("c", reward=1.0, group_id="equal"),
        make_sample("d", reward=1.0, group_id="equal"),
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
    return [replace(sample, rollout_log_probs=score(model, sample)) for sample in made]


def score(model: torch.nn.Module, sample: Sample) -> np.ndarray:
    ids = np.concatenate((sample.prompt_ids, sample.response_ids)).astype(np.int64)
    with torch.no_grad():
        log_probs = model(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1].log_softmax(-1)
    found = log_probs[torch.arange(len(ids) - 1), torch.from_numpy(ids)[1:]].numpy()[-len(sample.response_ids) :]
    return np.where(sample.response_mask == 1, found, np.nan).astype(np.float32)


def write(data: Path, samples: list[Sample]) -> None:
    sessions = {
        s.session_id: Session(
            session_id=s.session_id, run_id=s.run_id, group_id=s.group_id, reward=s.reward, reward_status="graded"
        )
        for s in samples
    }
    write_part(run_dir(table_dir(data, "sessions"), "r") / "part-0.parquet", "sessions", list(sessions.values()))
    write_part(run_dir(table_dir(data, "samples", "default"), "r") / "part-0.parquet", "samples", samples)


def forge_train(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Unverified: these rows have no calls beside them."""
    return subprocess.run(
        [sys.executable, "-m", "forge", "train", "--data", str(data), "--unverified", *options],
        capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, "HOME": str(data)}, check=False,
    )  # fmt: skip


@pytest.mark.ray
def test_two_steps_end_in_published_weights(tmp_path: Path, tiny_model: Path, samples: list[Sample]) -> None:
    write(tmp_path, samples)
    (tmp_path / "policy" / "1").mkdir(parents=True)  # left by a run that died before it moved CURRENT
    done = forge_train(tmp_path, "--model", str(tiny_model), "--steps", "2", "--lr", "1e-3")
    assert done.returncode == 0, done.stderr
    assert "1 no_spread groups" in done.stdout
    published = weights.current(tmp_path)
    assert published is not None
    assert published.version == 2
    assert published.digest == weights.weight_digest(published.path) != weights.weight_digest(tiny_model)
    assert (published.path / "chat_template.jinja").exists()
    lines = [json.loads(line) for line in (tmp_path / "train/2/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    first = lines[0]
    assert first["delta_log_prob_max"] < 1e-5
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert (first["sessions"], first["rows"], first["tokens"], first["groups_kept"]) == (2, 3, 13, 1)
    assert first["groups_dropped"] == {"no_spread": 1}
    assert first["staleness_max"] == 0
    assert lines[1]["loss"] < first["loss"]
    model = transformers.AutoModelForCausalLM.from_pretrained(published.path)
    gain = {s.sample_id: float(np.nansum(score(model, s) - s.rollout_log_probs)) for s in samples}
    assert gain["a-0"] + gain["a-1"] > 0 > gain["b-0"]
    assert not (tmp_path / ".ray").exists(), "Ray left its token in the user's home"

    again = forge_train(tmp_path)
    assert again.returncode == Exit.UNTRAINABLE
    assert "stale" in again.stderr
    assert "--max-staleness" in again.stderr


def test_without_spread_it_says_so_and_exits_3(tmp_path: Path, make_sample: MakeSample, tiny_model: Path) -> None:
    write(tmp_path, [make_sample(s, reward=1.0) for s in "ab"])
    done = forge_train(tmp_path, "--model", str(tiny_model))
    assert done.returncode == Exit.UNTRAINABLE
    assert "1 no_spread groups" in done.stderr
    assert "--group-size" in done.stderr
    assert not (tmp_path / "policy").exists()


def test_a_late_reward_counts(tmp_path: Path, make_sample: MakeSample, tiny_model: Path) -> None:
    """The rows say 1 and 0; a later revision of the session makes both 1."""
    write(tmp_path, [make_sample("a", reward=1.0), make_sample("b", reward=0.0)])
    late = Session(session_id="b", run_id="r", revision=1, group_id="g", reward=1.0, reward_status="graded")
    write_part(run_dir(table_dir(tmp_path, "sessions"), "r") / "part-1.parquet", "sessions", [late])
    done = forge_train(tmp_path, "--model", str(tiny_model))
    assert done.returncode == Exit.UNTRAINABLE
    assert "no_spread" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--run", "nope"], "no run 'nope'"),
        (["--control", "http://127.0.0.1:9"], "control token"),
        (["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_bad_input_is_named(tmp_path: Path, make_sample: MakeSample, options: list[str], said: str) -> None:
    write(tmp_path, [make_sample("a", reward=1.0), make_sample("b", reward=0.0)])
    done = forge_train(tmp_path, *options)
    assert done.returncode not in (0, 1)
    assert said in done.stderr
    assert "next:" in done.stderr
    assert "Traceback" not in done.stderr


def test_media_are_refused_before_anything_starts(tmp_path: Path, make_sample: MakeSample, tiny_model: Path) -> None:
    write(tmp_path, [make_sample("a", reward=1.0, media='["sha"]'), make_sample("b", reward=0.0)])
    done = forge_train(tmp_path, "--model", str(tiny_model))
    assert done.returncode == Exit.UNTRAINABLE
    assert "a-0" in done.stderr
    assert "media" in done.stderr


IN_A_CLUSTER = """
import pathlib, sys
from forge.storage.errors import BadInput, Unavailable
from forge.trainer.cluster import cluster
from forge.trainer.config import Hyper
from forge.trainer.group import LearnerGroup

model, scratch = map(pathlib.Path, sys.argv[1:])
try:
    with cluster("127.0.0.1:1"):
        pass
except Unavailable as error:
    print(error.message)
with cluster(None):
    import ray
    for asked in ({"workers": 1, "gpu": True}, {"workers": 999, "gpu": False}):
        try:
            LearnerGroup(model, Hyper(), scratch=scratch, **asked)
        except Unavailable as error:
            print(error.message)
    with LearnerGroup(pathlib.Path("/no/model"), Hyper(), workers=1, gpu=None, scratch=scratch) as learners:
        try:
            learners.load()
        except BadInput as error:
            print(error.message)
        print("loaded" if learners._thread.is_alive() else "dead")
    with LearnerGroup(model, Hyper(), workers=1, gpu=None, scratch=scratch) as learners:
        print("loaded on", learners.load())
        try:
            learners._call("__dict__")
        except Unavailable as error:
            print(error.message)
with cluster(None):
    print("again", ray.get(ray.remote(lambda: 1).remote()))
print("left", not ray.is_initialized())
"""
"""In a process of its own: Ray leaves children behind for the interpreter's end to reap, and warns of them there."""


@pytest.mark.ray
def test_what_goes_wrong_in_ray_is_named(tiny_model: Path, tmp_path: Path) -> None:
    """Too few resources, no GPU, no model, no cluster, a learner that dies: each is said, none is waited for."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CLUSTER, str(tiny_model), str(tmp_path)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("cannot join the Ray cluster at 127.0.0.1:1")
    assert said[1] == "1 learners want a GPU each, and the cluster has no GPU"
    assert said[2].startswith("999 learners want a CPU each, and the cluster has ")
    assert said[3].startswith("/no/model holds no model")
    assert said[4] == "loaded"
    assert said[5].startswith("loaded on c")
    assert said[6].startswith("the learner's process ended: ")
    assert said[-1] == "left True"


@pytest.mark.ray
def test_two_learners_are_one(tmp_path: Path, tiny_model: Path, samples: list[Sample]) -> None:
    """Under DDP the sum over two processes is what one learner without Ray has: losses, gradients, and every other
    number of a step; and imitation goes the same way."""
    write(tmp_path, samples)
    done = forge_train(
        tmp_path, "--model", str(tiny_model), "--steps", "2", "--lr", "1e-3", "--objective", "sft", "--workers", "2",
        "--out", str(tmp_path / "two"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    alone(tmp_path, tiny_model, samples)
    lines = [read(tmp_path / out / "metrics.jsonl") for out in ("one", "two")]
    assert len(lines[0]) == len(lines[1]) == 2
    for one, two in zip(*lines, strict=True):
        for name in set(one) - {"time", "seconds", "tokens_per_second", "version", "staleness_mean", "staleness_max"}:
            assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-7), name
    assert lines[0][1]["loss"] < lines[0][0]["loss"]


def alone(data: Path, model: Path, samples: list[Sample]) -> None:
    config = TrainConfig(
        data=data, model=str(model), steps=2, hyper=Hyper(objective=Objective.SFT, lr=1e-3), out=data / "one"
    )
    start = start_of(config, samples, print)
    learner = Learner(start.base.path, config.hyper)
    learner.load()
    with Metrics(start.out) as metrics:
        loop = Loop(config, start, learner, metrics, print, None)
        loop.run(lambda batch, version: samples if batch == 0 else None)
