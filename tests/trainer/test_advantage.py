"""Advantages against numbers worked out by hand, and the account of what is left out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forge.trainer import account
from forge.trainer.advantage import Selection, group_advantages, select, select_all
from forge.trainer.config import Baseline, Overlong
from tests.trainer.conftest import MakeSample


def choose(samples: list[Any], **changes: Any) -> Selection:
    return select(samples, **({"version": 0, "max_staleness": 0, "baseline": Baseline.STD} | changes))


def test_rewards_one_zero_zero_one() -> None:
    # mean 1/2, sample variance 4 * 1/4 / 3 = 1/3
    found = group_advantages([1, 0, 0, 1], Baseline.STD)
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert found == pytest.approx([expected, -expected, -expected, expected], rel=1e-12)


def test_without_the_standard_deviation() -> None:
    assert group_advantages([3, 0, 0], Baseline.MEAN) == [2.0, -1.0, -1.0]


def test_against_the_mean_of_the_others() -> None:
    assert group_advantages([3, 0, 0], Baseline.LEAVE_ONE_OUT) == pytest.approx([3.0, -1.5, -1.5])


@pytest.mark.parametrize("rewards", [[], [1.0], [0.0], [0.5, 0.5, 0.5]])
def test_a_group_that_cannot_teach(rewards: list[float]) -> None:
    assert group_advantages(rewards, Baseline.STD) is None


def test_rows_of_a_session_count_once(make_sample: MakeSample) -> None:
    """Three rows of the winner do not pull the mean: 1 against 0 stays +-1/2."""
    rows = [make_sample("win", i, reward=1.0) for i in range(3)] + [make_sample("lose", reward=0.0)]
    chosen = choose(rows, baseline=Baseline.MEAN)
    assert chosen.advantages == {"lose": -0.5, "win": 0.5}
    assert chosen.tokens == {"lose": 3, "win": 9}
    assert len(chosen.rows) == 4


def test_everything_left_out_has_its_reason(make_sample: MakeSample) -> None:
    chosen = choose(
        [
            make_sample("a", reward=1.0, group_id="kept"),
            make_sample("b", reward=0.0, group_id="kept"),
            make_sample("c", reward=None, group_id="kept"),
            make_sample("d", reward=1.0, group_id="equal"),
            make_sample("e", reward=1.0, group_id="equal"),
            make_sample("f", reward=1.0, group_id="alone"),
            make_sample("g", reward=1.0, group_id=None),
            make_sample("h", reward=1.0, group_id="kept", trainable=False, untrainable_reason="eval"),
            make_sample("i", reward=9.0, group_id="kept", policy_version_min=-2, policy_version_max=0),
            make_sample("j", reward=9.0, group_id="kept", policy_version_min=1, policy_version_max=1),
        ]
    )
    assert sorted(chosen.advantages) == ["a", "b"]
    assert chosen.groups_kept == 1
    assert chosen.groups_dropped == {"no_spread": 1, "fewer_than_two": 1}
    assert chosen.sessions_dropped == {"reward_null": 1, "no_group": 1}
    assert chosen.rows_dropped == {"not_trainable": 1, "stale": 1, "newer": 1}


def test_a_null_reward_is_not_a_zero(make_sample: MakeSample) -> None:
    """With the null as 0 the mean of 1, 1, null would leave spread; without it there is none."""
    chosen = choose([make_sample("a", reward=1.0), make_sample("b", reward=1.0), make_sample("c", reward=None)])
    assert chosen.rows == []
    assert chosen.groups_dropped == {"no_spread": 1}


def test_groups_of_two_runs_do_not_mix(make_sample: MakeSample) -> None:
    chosen = choose([make_sample("a", reward=1.0, run_id="r1"), make_sample("b", reward=0.0, run_id="r2")])
    assert chosen.groups_dropped == {"fewer_than_two": 2}


def test_order_of_samples_does_not_matter(make_sample: MakeSample) -> None:
    rows = [make_sample(s, i, reward=float(s == "b")) for s in "abc" for i in range(2)]
    assert choose(rows) == choose(rows[::-1])


def test_staleness_is_counted_from_the_lowest_version(make_sample: MakeSample) -> None:
    rows = [
        make_sample("a", reward=1.0, policy_version_min=1, policy_version_max=3),
        make_sample("b", reward=0.0, policy_version_min=3, policy_version_max=3),
        make_sample("c", reward=0.0, policy_version_min=None, policy_version_max=None),
    ]
    chosen = choose(rows, version=3, max_staleness=None)
    assert chosen.staleness == [2, 0]
    assert len(chosen.rows) == 3


def test_overlong_rows_are_compared_with_and_not_learned_from(make_sample: MakeSample) -> None:
    rows = [
        make_sample("a", reward=1.0),
        make_sample("b", 0, reward=0.0, truncated=True),
        make_sample("b", 1, reward=0.0),
        make_sample("c", reward=0.0, truncated=True),
    ]
    chosen = choose(rows, baseline=Baseline.MEAN, overlong=Overlong.MASK)
    assert [row.sample_id for row in chosen.rows] == ["a-0", "b-1"]
    assert chosen.advantages == pytest.approx({"a": 2 / 3, "b": -1 / 3})
    assert chosen.tokens == {"a": 3, "b": 3}
    assert chosen.rows_dropped == {"overlong": 2}


def test_imitation_takes_what_no_group_can_compare(make_sample: MakeSample) -> None:
    rows = [
        make_sample("a", reward=None, group_id=None),
        make_sample("b", reward=0.0, policy_version_min=-7),
        make_sample("c", trainable=False),
    ]
    chosen = select_all(rows, version=0)
    assert chosen.advantages == {"a": 1.0, "b": 1.0}
    assert chosen.rows_dropped == {"not_trainable": 1}


def test_sessions_of_which_no_call_may_be_trained_are_not_said_to_lack_rewards() -> None:
    assert "forge stats" in account.hint(choose([]))
