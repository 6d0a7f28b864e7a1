"""What is exported and what it weighs, whatever the trainer; that every format keeps it together."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.adapters.trainers import prime_rl, skyrl, slime, tinker, trl, verl
from forge.adapters.trainers.rows import Choice, Left, Needs, Row, left_out, rows_of
from forge.storage.errors import Untrainable
from forge.storage.media import MediaStore
from forge.storage.records import Sample
from tests.trainers.conftest import a_sample

RL = Needs()


@st.composite
def sample_sets(draw: st.DrawFn) -> list[Sample]:
    """Sessions of one to four rows, in groups of one to three sessions."""
    made = []
    for group in range(draw(st.integers(1, 3))):
        for index in range(draw(st.integers(1, 3))):
            name, rows = f"g{group}s{index}", draw(st.integers(1, 4))
            reward = draw(st.sampled_from([0.0, 0.5, 1.0]))
            for row in range(rows):
                mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=8))
                made.append(
                    a_sample(name, row, mask, group_id=f"g{group}", row_count=rows, reward=reward, rollout_index=index)
                )
    return made


def chosen(samples: list[Sample], needs: Needs = RL) -> tuple[list[Row], Choice]:
    choice = Choice(needs)
    for sample in samples:
        choice.see(sample)
    choice.drop_lonely()
    advantages = dict.fromkeys(choice.kept, 0.5)
    return list(choice.rows(samples, advantages)), choice


@settings(max_examples=60, deadline=None)
@given(sample_sets())
def test_sessions_count_alike_and_every_row_is_accounted_for(samples: list[Sample]) -> None:
    rows, choice = chosen(samples)
    assert len(rows) + choice.left.total() == len(samples)
    sessions: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        sessions[row.sample.session_id].append(row)
    for mine in sessions.values():
        assert [row.last for row in mine] == [False] * (len(mine) - 1) + [True]
        assert mine[0].session_tokens == sum(int(row.sample.response_mask.sum()) for row in mine)
    # Weighed tokens of every session add up to the same, and the mean weight is 1.
    sums = [sum(row.weight * int(row.sample.response_mask.sum()) for row in mine) for mine in sessions.values()]
    np.testing.assert_allclose(sums, sums[:1] * len(sums))
    np.testing.assert_allclose(sum(sums), sum(int(row.sample.response_mask.sum()) for row in rows))
    for group in {row.group for row in rows}:
        assert len({row.sample.session_id for row in rows if row.group == group}) >= 2, "field case 170"


@settings(max_examples=60, deadline=None)
@given(sample_sets())
def test_every_format_keeps_ids_masks_and_log_probs_together(samples: list[Sample]) -> None:
    """Field cases 147, 148, 149: a mask of 1 stands exactly where a recorded log probability does."""
    rows, _ = chosen(samples)
    numbered = list(slime.numbered(rows))
    for row, theirs, (_, step) in zip(rows, numbered, skyrl.lines(rows), strict=True):
        ids, mask = row.ids.tolist(), row.mask.tolist()
        told: dict[int, float] = {
            place: float(row.sample.rollout_log_probs[place - 3]) for place, trained in enumerate(mask) if trained
        }
        out = verl.output(row)
        prime = prime_rl.training_sample(row)
        datum = tinker.datum(row)
        shifted: dict[str, Any] = datum["loss_fn_inputs"]
        sample = trl.rollout_sample(row, group=0, version=0)
        wholes = {
            "verl": (
                out["prompt_ids"] + out["response_ids"],
                [0] * 3 + out["response_mask"],
                [0.0] * 3 + out["response_logprobs"],
            ),
            "slime": (theirs["tokens"], [0] * 3 + theirs["loss_mask"], [0.0] * 3 + theirs["rollout_log_probs"]),
            "skyrl": (
                [*step["prompt_token_ids"], *step["response_ids"]],
                [0] * 3 + list(step["loss_masks"]),
                [0.0] * 3 + list(step["rollout_logprobs"]),
            ),
            "prime-rl": (prime.token_ids, prime.mask, prime.logprobs),
            "tinker": (
                [datum["tokens"][0], *shifted["target_tokens"]],
                [0, *shifted["mask"]],
                [0.0, *shifted["logprobs"]],
            ),
            "trl": (list(sample["input_ids"]), list(sample["completion_mask"]), list(sample["old_log_probs"])),
        }  # fmt: skip
        for name, (their_ids, their_mask, their_log_probs) in wholes.items():
            assert their_ids == ids, name
            assert [int(m) for m in their_mask] == mask, name
            assert {i: p for i, p in enumerate(their_log_probs) if their_mask[i]} == told, name
            assert all(p == 0.0 for i, p in enumerate(their_log_probs) if not their_mask[i]), name
        assert datum["tokens"] == ids[:-1]
        assert (np.array(shifted["advantages"]) != 0).tolist() == [m == 1 for m in shifted["mask"]]
        assert (np.array(prime.rl_weights) != 0).tolist() == prime.mask


@settings(max_examples=40, deadline=None)
@given(sample_sets(), st.integers(0, 3), st.integers(0, 3))
def test_verls_batch_is_padded_left_and_right(samples: list[Sample], left: int, right: int) -> None:
    rows, _ = chosen(samples)
    batch = verl.padded(
        [verl.line(row, MediaStore(Path())) for row in rows],
        prompt_length=3 + left,
        response_length=8 + right,
        pad_id=7,
    )
    for at, row in enumerate(rows):
        size = len(row.sample.response_ids)
        assert batch["prompts"][at].tolist() == [7] * left + row.sample.prompt_ids.tolist()
        assert batch["responses"][at].tolist() == row.sample.response_ids.tolist() + [7] * (8 + right - size)
        seen = batch["attention_mask"][at] == 1
        assert batch["input_ids"][at][seen].tolist() == row.ids.tolist()
        assert batch["position_ids"][at][seen].tolist() == list(range(3 + size))
        assert batch["response_mask"][at].sum() == row.sample.response_mask.sum()
        assert np.flatnonzero(batch["rm_scores"][at]).tolist() == ([size - 1] if row.reward else [])
        assert batch["rm_scores"][at].sum() == row.reward


@settings(max_examples=40, deadline=None)
@given(sample_sets())
def test_rewards_stand_where_a_trainer_adds_them_up(samples: list[Sample]) -> None:
    rows, _ = chosen(samples)
    sums: dict[str, float] = defaultdict(float)
    for row, line in skyrl.lines(rows):
        sums[row.sample.session_id] += float(np.sum(line["rewards"]))
        assert not np.any(line["rewards"][:-1])
    assert all(sums[row.sample.session_id] == row.reward for row in rows)
    outputs = [verl.output(row) for row in rows]
    assert [out["reward_score"] is not None for out in outputs] == [row.last for row in rows]
    numbered = list(slime.numbered(rows))
    assert len({each["rollout_id"] for each in numbered}) == len({row.sample.session_id for row in rows})
    for one in numbered:
        siblings = {each["session_id"] for each in numbered if each["rollout_id"] == one["rollout_id"]}
        assert siblings == {one["session_id"]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trainable": False, "untrainable_reason": "eval"}, Left.EVAL),
        ({"trainable": False, "untrainable_reason": "status"}, Left.NOT_TRAINABLE),
        ({"mask": [0, 0]}, Left.NOT_TRAINABLE),
        ({"media": '["ab"]'}, Left.MEDIA),
        ({"reward": None, "reward_status": "null"}, Left.REWARD_NULL),
        ({"reward": None, "reward_status": "pending"}, Left.REWARD_PENDING),
        ({"group_id": None}, Left.NO_GROUP),
    ],
)
def test_what_may_not_be_trained_is_left_out_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    """Field cases 151 (media) and 170 (no group is guessed)."""
    assert left_out(a_sample(**changes), RL) == reason


def test_a_reward_of_null_is_kept_only_where_told() -> None:
    sample = a_sample(reward=None, reward_status="null", group_id=None)
    text = Needs(tokens=False, reward=False, group=False)
    assert left_out(sample, text) == Left.REWARD_NULL
    assert left_out(sample, text, unrewarded=True) is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout_log_probs": np.array([-0.1, np.nan, np.nan, -0.1], np.float32)}, "token 1 .* no log probability"),
        ({"rollout_log_probs": np.array([-0.1, -np.inf, np.nan, -0.1], np.float32)}, "token 1 .* no log probability"),
        ({"rollout_log_probs": np.array([-0.1], np.float32)}, "differ in length"),
        ({"prompt_ids": np.empty(0, np.int32)}, "no prompt ids"),
    ],
)
def test_a_row_that_contradicts_itself_is_an_error_that_names_it(changes: dict[str, Any], said: str) -> None:
    """Field cases 147, 149, 150: nothing is padded, dropped or let through."""
    with pytest.raises(Untrainable, match=said) as error:
        left_out(a_sample("sx", 3, **changes), RL)
    assert "row sx-3 of run r" in error.value.message


def test_a_live_trainers_rows_come_without_groups_of_ours() -> None:
    rows, left = rows_of([a_sample(group_id=None), a_sample(row=1, group_id=None)], Needs(group=False))
    assert [row.last for row in rows] == [False, True]
    assert not left


def test_groups_of_two_runs_are_told_apart() -> None:
    """Field case 170."""
    assert Row(a_sample(run_id="a"), True, 1).group == "a/g"
    assert Row(a_sample(run_id="a", group_id="a/t/codex"), True, 1).group == "a/t/codex"


def test_slimes_advantage_counts_a_session_of_many_rows_once() -> None:
    """Three rows of one session and one of another: the mean is over two sessions."""
    values = slime.advantages([1.0, 1.0, 1.0, 0.0, None, 1.0], [0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 2, 3])
    np.testing.assert_allclose(values[:4], [0.70710, 0.70710, 0.70710, -0.70710], atol=1e-4)
    assert values[4:] == [0.0, 0.0]
