"""What trainers load by name, over a real proxy and a real program, without the trainers themselves.

slime is on no registry: ``SlimeSample`` stands in for its ``Sample``, with its fields by name and nothing else of it.
What TRL and verl are is checked against the installed packages in ``test_real.py``.
"""

from __future__ import annotations

import argparse
import enum
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forge.client import ControlClient
from forge.export import ExportConfig, export
from forge.plugins import slime, trl, verl
from forge.plugins.episodes import blocking
from forge.plugins.settings import Settings, prompt_text
from forge.plugins.trl_trace import HarnessSessions
from forge.plugins.trl_worker import ForgeWorker
from forge.storage.errors import BadInput
from tests.trainers.conftest import MakeData, a_sample, a_session
from tests.trainers.served import AGENT, Served, proxied_elsewhere

pytestmark = pytest.mark.process

GOOD = [{"role": "user", "content": "do it"}]
BAD = [{"role": "user", "content": "please fail"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with proxied_elsewhere(tmp_path_factory.mktemp("trainers")) as there:
        yield there


@dataclass
class SlimeSample:
    """A stand-in."""

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    def get_reward_value(self, args: Any) -> Any:
        return self.reward


def test_names_load_without_any_trainer() -> None:
    code = (
        "import sys, forge.plugins.verl, forge.plugins.trl_worker, forge.plugins.trl_trace, forge.plugins.slime\n"
        "import forge.plugins.tinker\n"
        "assert not {'verl', 'trl', 'slime', 'tinker', 'ray', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_verl_gets_one_output_for_each_row_of_a_session(served: Served) -> None:
    """uid is the group, the session's number its index; the reward stands on the last, versions on all."""
    blocking(verl.announce(served.settings, [served.engine.url.removeprefix("http://")], 4))
    row = {"uid": "u1", "session_id": 2, "raw_prompt": GOOD, "extra_info": {"task_id": "good"}, "global_steps": 9}
    first, last = blocking(verl.outputs(served.settings, {"temperature": 1.0, "logprobs": True}, row))
    assert (first["reward_score"], last["reward_score"] in (0.0, 1.0)) == (None, True)
    for output in (first, last):
        sizes = {len(output[name]) for name in ("response_ids", "response_mask", "response_logprobs")}
        assert len(sizes) == 1
        assert sum(output["response_mask"]) > 0
        extra = output["extra_fields"]
        assert (extra["min_global_steps"], extra["max_global_steps"]) == (4, 4)
        assert extra["reward_extra_info"] == {}
        assert extra["row_count"] == 2
    session_id = first["extra_fields"]["sample_id"].rpartition("-")[0]

    async def recorded() -> Any:
        path = Path(served.settings.control_token_file)
        async with ControlClient.from_token_file(served.settings.control, path) as client:
            return await client.session(session_id)

    session = blocking(recorded())
    assert (session.group_id, session.rollout_index, session.task_id) == ("u1", 2, "good")


def test_a_failed_session_is_no_output_and_no_error(served: Served) -> None:
    """Field case 171."""
    row = {"uid": "u2", "raw_prompt": BAD, "task_id": "bad"}
    assert blocking(verl.outputs(served.settings, {}, row)) == []


def test_a_validation_gets_its_rows_though_none_may_ever_train(served: Served) -> None:
    row = {"uid": "u3", "raw_prompt": GOOD, "task_id": "good"}
    made = blocking(verl.outputs(Settings.of(served.told(purpose="eval", run_id="val")), {"temperature": 0.5}, row))
    assert [each["reward_score"] is None for each in made] == [True, False]
    assert all(sum(each["response_mask"]) > 0 for each in made)


async def test_without_tasks_the_prompt_is_the_task_and_the_reward_the_trainers(served: Served, tmp_path: Path) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT)
    told = served.told(tasks=None, command=f"python3 {agent} {{prompt}}", run_id="free")
    out = trl.rollout_func(told)(["do it"], grpo_trainer())
    assert out["reward"] == [None]
    assert sum(out["env_mask"][0]) > 0
    args = argparse.Namespace(**{f"forge_{name}": value for name, value in told.items()})
    made = await slime.generate(args, SlimeSample(index=0, prompt=GOOD), {})
    assert [sample.reward for sample in made] == [None, None]
    assert [sample.status for sample in made] == [SlimeSample.Status.COMPLETED] * 2


def test_verls_pool_becomes_ours(served: Served) -> None:
    async def pool() -> list[tuple[str, Any]]:
        path = Path(served.settings.control_token_file)
        async with ControlClient.from_token_file(served.settings.control, path) as client:
            return [(upstream["url"], upstream["policy_version"]) for upstream in await client.upstreams()]

    blocking(verl.announce(served.settings, [served.engine.url], 7))
    assert blocking(pool()) == [(served.engine.url, 7)]
    assert verl.first_step({"global_steps": np.array([7, 7])}) == 7
    assert verl.first_step({"global_steps": SimpleNamespace(data=7)}) == 7
    assert verl.first_step({}) is None


def grpo_trainer(training: bool = True) -> Any:
    """What ``rollout_func`` reads of a trainer."""
    return SimpleNamespace(
        model=SimpleNamespace(training=training), num_generations=2, num_generations_eval=1,
        state=SimpleNamespace(global_step=3), accelerator=SimpleNamespace(process_index=0),
        processing_class=SimpleNamespace(pad_token_id=0), temperature=1.0, top_p=1.0, top_k=0, min_p=None,
        repetition_penalty=1.0,
    )  # fmt: skip


def test_trl_gets_one_completion_per_prompt_in_order(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Field case 169: how many rows were left out is told."""
    out = trl.rollout_func(served.told())([GOOD, GOOD, BAD, BAD], grpo_trainer())
    assert {len(values) for values in out.values()} == {4}
    for ids, log_probs, mask in zip(out["completion_ids"], out["logprobs"], out["env_mask"], strict=True):
        assert len(ids) == len(log_probs) == len(mask)
    assert sorted(out["reward"][:2]) == [0.0, 1.0]
    assert out["reward"][2:] == [None, None]
    assert out["env_mask"][2:] == [[0], [0]]
    assert out["rows_left_out"] == [1, 1, 0, 0]
    assert "2 rows left out" in caplog.text
    assert trl.recorded_reward([], reward=out["reward"]) == out["reward"]


def test_a_prompt_that_is_no_task_is_an_error(served: Served) -> None:
    with pytest.raises(BadInput, match="no task with the prompt 'who'"):
        trl.rollout_func(served.settings)(["who"], grpo_trainer())


@dataclass
class AsyncSample:
    """TRL's fields, some of them as lists, as 1.10 had them."""

    prompt: list[Any]
    completion: list[Any]
    input_ids: list[int]
    completion_mask: np.ndarray[Any, Any]
    old_log_probs: np.ndarray[Any, Any]
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float]


def test_the_worker_compares_sessions_and_gives_every_row(served: Served) -> None:
    worker = ForgeWorker(served.told(run_id="w", concurrency=2), group_size=2, sample_type=AsyncSample)
    worker.start()
    try:
        samples = [worker.rollout_buffer.get(timeout=60) for _ in range(4)]
        worker.check_health(60.0)
    finally:
        worker.stop()
    assert {sample.group_id for sample in samples} == {0}
    assert sorted(round(sample.advantage, 3) for sample in samples) == [-0.707, -0.707, 0.707, 0.707]
    for sample in samples:
        assert isinstance(sample.input_ids, list)
        assert len(sample.input_ids) == len(sample.completion_mask) == len(sample.old_log_probs)
        assert sample.completion_mask.sum() > 0
        assert sample.prompt[-1]["role"] == "user"
        assert sample.completion[0]["role"] == "assistant"
    assert worker.metrics_queue.get_nowait() == {"forge/sessions_unscored": 0.0}


@dataclass
class NewerSample(AsyncSample):
    new: int


def test_a_worker_that_ended_says_why(served: Served) -> None:
    """A TRL whose samples want a field that we do not know."""
    worker = ForgeWorker(served.told(run_id="w2"), group_size=2, sample_type=NewerSample)
    worker.start()
    worker.wait(60.0)
    with pytest.raises(RuntimeError, match="wants the field 'new'"):
        worker.check_health(60.0)
    worker.stop()


def test_trls_harness_worker_gets_the_recorded_ids(served: Served) -> None:
    """Field cases 153, 163: ids are those of the record, none is encoded again."""
    session = HarnessSessions(served.told(run_id="trace")).create("do it", seed=5)
    session.wait_for_completion()
    trace = session.fetch_training_trace()
    assert len(trace.turns) == 2
    for turn in trace.turns:
        assert len(turn.loss_mask) == len(turn.prompt_token_ids) + len(turn.completion_token_ids)
        assert len(turn.per_token_logps) == len(turn.completion_token_ids)
    entries = session.fetch_proxy_trace()
    assert entries[0].completion_tokens[0].startswith("token_id:")
    assert entries[0].request["messages"] == GOOD
    assert session.verify([]).env_reward in (0.0, 1.0)
    session.close()


def slime_args(served: Served, **more: Any) -> argparse.Namespace:
    told = {f"forge_{name}": value for name, value in served.told(run_id="sl").items()}
    return argparse.Namespace(n_samples_per_prompt=2, rollout_batch_size=1, **told, **more)


async def test_slime_gets_a_sample_for_each_row_and_one_for_a_failure(served: Served) -> None:
    args = slime_args(served)
    asked = SlimeSample(group_index=3, index=7, prompt=GOOD, label="l", metadata={"task_id": "good"})
    made = await slime.generate(args, asked, {"temperature": 1.0, "max_new_tokens": 50})
    other = await slime.generate(args, SlimeSample(group_index=3, index=6, prompt=GOOD), {})
    (failed,) = await slime.generate(args, SlimeSample(group_index=3, index=8, prompt=BAD), {})
    assert [len(made), len(other)] == [2, 2]
    for sample in (*made, *other, failed):
        assert len(sample.loss_mask or []) == len(sample.rollout_log_probs or []) == sample.response_length
        assert len(sample.tokens) > sample.response_length
    assert {(s.group_index, s.index, s.label, vars(s)["rollout_id"]) for s in made} == {(3, 7, "l", 7)}
    assert (failed.status, failed.remove_sample, sum(failed.loss_mask)) == (SlimeSample.Status.ABORTED, True, 0)
    assert failed.metadata["forge_status"] == "failed"
    raw, advantages = slime.rewards(args, [*made, *other, failed])
    assert sorted(raw[:4]) == [0.0, 0.0, 1.0, 1.0]
    assert math.isnan(raw[4])
    assert sorted(round(value, 3) for value in advantages) == [-0.707, -0.707, 0.0, 0.707, 0.707]


SLIME_TYPES = """
import dataclasses, enum
@dataclasses.dataclass
class Sample:
    class Status(enum.Enum):
        COMPLETED = "completed"
    fields: dict
    @classmethod
    def from_dict(cls, data):
        return cls(data)
"""
"""Stand-ins of slime's modules."""
SLIME_OUTPUT = """
import dataclasses
@dataclasses.dataclass
class RolloutFnTrainOutput:
    samples: list
"""
REPLAY = """
import argparse, sys
from forge.plugins import slime
from forge.storage.errors import BadInput
args = argparse.Namespace(forge_export=sys.argv[1], rollout_batch_size=1)
steps = [slime.replay(args, step, None).samples for step in (0, 1)]
assert [[len(group) for group in step] for step in steps] == [[2], [2]], steps
assert [s.fields["group_index"] for s in steps[1][0]] == [1, 1]
try:
    slime.replay(args, 2, None)
except BadInput as error:
    assert "has 2 groups" in error.message
else:
    raise SystemExit("no error at the end")
"""


def test_slime_replays_an_export_group_by_group(make_data: MakeData, tmp_path: Path) -> None:
    names = [("s0", "g"), ("s1", "g"), ("s2", "h"), ("s3", "h")]
    data = make_data(
        [a_sample(name, group_id=group) for name, group in names],
        [a_session(name, float(at % 2), group_id=group) for at, (name, group) in enumerate(names)],
    )
    path = export(ExportConfig(to="slime", data=data, out=tmp_path / "s.jsonl")).path
    for name, text in (("utils/types", SLIME_TYPES), ("rollout/base_types", SLIME_OUTPUT)):
        module = tmp_path / "there" / "slime" / f"{name}.py"
        module.parent.mkdir(parents=True)
        module.write_text(text)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    subprocess.run([sys.executable, "-c", REPLAY, str(path)], check=True, timeout=120, env=env)


def test_settings_say_what_is_wrong() -> None:
    with pytest.raises(BadInput, match="no setting is called 'harnes'"):
        Settings.of({"harnes": "codex"})
    with pytest.raises(BadInput, match="'control' is missing"):
        Settings.of({"harness": "codex"})
    assert (
        prompt_text([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}])
        == "ab"
    )


def test_served_tasks_are_what_the_file_says(served: Served) -> None:
    lines = Path(str(served.settings.tasks)).read_text().splitlines()
    assert list(served.settings.all_tasks) == [json.loads(line)["id"] for line in lines]
