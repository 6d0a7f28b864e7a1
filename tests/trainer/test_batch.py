"""Weights fixed before micro-batching, and refusals by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.storage.errors import Untrainable
from forge.trainer.advantage import select
from forge.trainer.batch import Row, check, drawn, joined, packs, rows_digest, rows_of, shares
from forge.trainer.config import Baseline, Mean
from tests.trainer.conftest import MakeSample


def batch(samples: list[Any]) -> list[Row]:
    return rows_of(select(samples, version=0, max_staleness=None, baseline=Baseline.MEAN))


def test_a_session_weighs_one_however_it_is_split(make_sample: MakeSample) -> None:
    """a: one row of 4 tokens. b: the same 4 in rows of 1 and 3. c: 2 tokens, whose group's rewards are equal."""
    rows = batch(
        [
            make_sample("a", mask=[1, 1, 0, 1, 1], reward=1.0),
            make_sample("b", 0, mask=[1, 0], reward=0.0),
            make_sample("b", 1, mask=[0, 1, 1, 1], reward=0.0),
            make_sample("c", mask=[1, 1], reward=5.0, group_id="alone"),
        ]
    )
    by_id = {row.sample_id: row for row in rows}
    assert set(by_id) == {"a-0", "b-0", "b-1"}
    # two sessions are kept; each token of each weighs 1 / (2 * 4)
    assert {row.weight for row in rows} == {0.125}
    assert sum(row.weight * len(row.places) for row in rows) == 1.0
    assert by_id["a-0"].places.tolist() == [4, 5, 7, 8]
    assert by_id["b-1"].places.tolist() == [5, 6, 7]
    assert (by_id["a-0"].advantage, by_id["b-1"].advantage) == (0.5, -0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"media": '["sha"]'}, "holds media"),
        ({"rollout_log_probs": np.array([-1, np.nan, -1], np.float32)}, "mask 1 and no log prob"),
        ({"temperature": None}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": 0.7, "logprobs_mode": "raw"}, "raw at temperature 0.7"),
        ({"temperature": 0.7, "logprobs_mode": None}, "of unknown kind"),
        ({"response_mask": np.array([1, 1], np.int8)}, "differ in length"),
        ({"prompt_ids": np.empty(0, np.int32)}, "no prompt"),
    ],
)
def test_what_would_teach_wrong_is_refused_by_name(make_sample: MakeSample, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Untrainable) as caught:
        check(make_sample("bad", 3, **changes))
    assert "bad-3" in caught.value.message
    assert said in caught.value.message
    assert caught.value.hint


def test_raw_log_probs_are_right_at_temperature_one(make_sample: MakeSample) -> None:
    check(make_sample(temperature=1.0, logprobs_mode="raw"))


def test_or_every_token_weighs_the_same(make_sample: MakeSample) -> None:
    samples = [make_sample("a", mask=[1, 1, 1], reward=1.0), make_sample("b", mask=[1], reward=0.0)]
    chosen = select(samples, version=0, max_staleness=None, baseline=Baseline.MEAN)
    assert [row.weight for row in rows_of(chosen, Mean.TOKEN)] == [0.25, 0.25]
    assert [row.weight for row in rows_of(chosen, Mean.SESSION)] == pytest.approx([1 / 6, 1 / 2])


def plain(name: str, size: int) -> Row:
    return Row(name, np.ones(size, np.int32), np.array([1]), np.zeros(1, np.float32), 1.0, 1.0, 1.0)


@given(st.lists(st.integers(2, 50), min_size=1, max_size=30), st.integers(1, 120))
def test_packs_hold_every_row_once_within_bounds(sizes: list[int], limit: int) -> None:
    rows = [plain(f"r{i:02d}", size) for i, size in enumerate(sizes)]
    found = packs(rows, limit)
    assert sorted(row.sample_id for pack in found for row in pack) == [row.sample_id for row in rows]
    for pack in found:
        ids, positions = joined(pack)
        assert len(ids) <= limit or len(pack) == 1
        assert (positions == 0).sum() == len(pack)
    fits = [size for size in sizes if size <= limit]
    fewest = -(-sum(fits) // limit) + sum(size > limit for size in sizes)
    assert len(found) <= 2 * fewest + 1


@given(st.lists(st.integers(2, 50), min_size=1, max_size=30), st.integers(1, 5))
def test_shares_hold_every_row_once_and_are_even(sizes: list[int], count: int) -> None:
    rows = [plain(f"r{i:02d}", size) for i, size in enumerate(sizes)]
    found = shares(rows, count)
    assert sorted(row.sample_id for share in found for row in share) == [row.sample_id for row in rows]
    tokens = [sum(len(row.ids) for row in share) for share in found]
    assert max(tokens) - min(tokens) <= max(sizes)


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 3))
def test_no_session_comes_again_before_all_were_drawn(sessions: int, count: int, seed: int) -> None:
    names = [f"s{i}" for i in range(sessions)]
    count = min(count, sessions)
    drawings = [name for number in range(3 * sessions) for name in drawn(names, number, count, seed)]
    for first in range(0, len(drawings) - sessions, sessions):
        assert sorted(drawings[first : first + sessions]) == sorted(names)
    assert drawn(names, 5, count, seed) == drawn(names, 5, count, seed)


def test_a_batch_is_known_by_its_rows_and_rewards(make_sample: MakeSample) -> None:
    rows = [make_sample("a", reward=1.0), make_sample("b", reward=0.0)]
    assert rows_digest(rows) == rows_digest([make_sample("a", reward=1.0), make_sample("b", reward=0.0)])
    assert len({rows_digest(rows), rows_digest(rows[:1]), rows_digest([rows[0], make_sample("b", reward=1.0)])}) == 3
