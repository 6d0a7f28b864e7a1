"""Routed experts and kept ids on their way from calls to what trainers read."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.adapters.trainers import slime, verl
from forge.adapters.trainers.rows import Row
from forge.storage.recipe import Recipe
from forge.storage.records import Call, Session
from forge.storage.samples import derive, samples_of
from tests.trainers.conftest import MakeData, a_sample, a_session
from tests.trainers.test_export import wrote

EXPERTS = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2)
"""Of the seven ids of ``a_sample``."""


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return out.getvalue()


def call(number: int, prompt: list[int], output: list[int], **members: Any) -> Call:
    return Call(
        call_id=f"c{number}",
        run_id="r",
        session_id="s",
        seq=number,
        prompt_ids=np.array(prompt, np.int32),
        output_ids=np.array(output, np.int32),
        output_log_probs=np.full(len(output), -0.5, np.float32),
        trainable=True,
        finish_reason="stop",
        policy_version_start=1,
        policy_version_end=1,
        **members,
    )


def two_turns() -> list[Call]:
    first = call(1, [1, 2], [3, 4], routed_experts=npy(EXPERTS[:3]), sampling_mask=b"[[3,9],[4]]")
    second = call(2, [1, 2, 3, 4, 5], [6, 7], routed_experts=npy(EXPERTS), sampling_mask=b"[[6],[7,8]]")
    return [first, second]


def test_a_sample_has_its_last_turns_experts_and_each_turns_kept_ids() -> None:
    (sample,) = samples_of(Session(session_id="s", run_id="r"), two_turns())
    assert np.load(io.BytesIO(sample.routed_experts or b"")).tolist() == EXPERTS.tolist()
    assert json.loads(sample.sampling_mask or b"") == [[3, 9], [4], [], [6], [7, 8]]
    assert len(json.loads(sample.sampling_mask or b"")) == len(sample.response_ids)


def test_what_a_recipe_cuts_is_cut_there_too() -> None:
    derived = derive(Session(session_id="s", run_id="r"), two_turns(), Recipe(name="short", max_tokens=6))
    (sample,) = derived.samples
    assert len(np.load(io.BytesIO(sample.routed_experts or b""))) == 5
    assert json.loads(sample.sampling_mask or b"") == [[3, 9], [4], [], [6]]


def test_where_an_engine_gave_none_there_is_none() -> None:
    (sample,) = samples_of(Session(session_id="s", run_id="r"), [call(1, [1], [2])])
    assert (sample.routed_experts, sample.sampling_mask) == (None, None)


def test_verl_replays_them(make_data: MakeData, tmp_path: Path) -> None:
    """In its agent loop's output, and at the places of the ids in the padded batch."""
    samples = [a_sample(name, routed_experts=npy(EXPERTS)) for name in ("s0", "s1")]
    data = make_data(samples, [a_session("s0", 1.0), a_session("s1", 0.0)])
    wrote("verl", data, tmp_path)
    tensors, _ = verl.read(tmp_path / "out.parquet", prompt_length=4, response_length=5, pad_id=0)
    assert tensors["routed_experts"].shape == (2, 9, 2, 2)
    for row in tensors["routed_experts"]:
        assert row[1:7].tolist() == EXPERTS.tolist()
        assert not row[0].any()
        assert not row[7:].any()
    output = verl.output(Row(samples[0], last=True, session_tokens=3))
    assert (output["routed_experts"].dtype, output["routed_experts"].tolist()) == (np.int16, EXPERTS.tolist())


@pytest.mark.parametrize("experts", [None, npy(EXPERTS.reshape(6, 4))])
def test_verl_gets_none_that_it_could_not_take_apart(experts: bytes | None) -> None:
    assert "routed_experts" not in verl.output(Row(a_sample(routed_experts=experts), last=True, session_tokens=3))


def test_slime_replays_them(make_data: MakeData, tmp_path: Path) -> None:
    """An array in memory; in the file, which is JSON, text that the replay reads back."""
    sample = a_sample("s0", routed_experts=npy(EXPERTS))
    assert slime.sample(Row(sample, last=True, session_tokens=3))[slime.EXPERTS].tolist() == EXPERTS.tolist()
    data = make_data([sample, a_sample("s1")], [a_session("s0", 1.0), a_session("s1", 0.0)])
    path, _ = wrote("slime", data, tmp_path)
    first, second = (slime.with_experts(json.loads(line)) for line in path.read_text().splitlines())
    assert first[slime.EXPERTS].tolist() == EXPERTS.tolist()
    assert slime.EXPERTS not in second
