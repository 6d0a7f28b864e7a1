"""Balanced adaptive rollout: against brute force over every choice there is, and its cost against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import ceil, floor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.rollouts.balance import Balance, Choose, Draw, Dropped, GiveUp, Result, pass_rate
from forge.rollouts.simulation import ADAPTIVE, PLAIN, RATES, rows, spent, table
from forge.storage.errors import BadInput

WON, LOST, NULL = Result(1.0), Result(0.0), Result(None)
results = st.lists(
    st.builds(Result, st.sampled_from([None, -1.0, 0.0, 0.5, 1.0]), st.booleans()), min_size=0, max_size=8
)


def mixed(rate: float, count: int) -> float:
    """That ``count`` sessions are neither all won nor all lost."""
    return 1 - rate**count - (1 - rate) ** count


def plain(rate: float) -> tuple[float, float]:
    """(sessions drawn, chance that the group teaches) of one try."""
    return 8, mixed(rate, 8)


def adaptive(rate: float) -> tuple[float, float]:
    """4, then 4 more where those were alike: rewards of 0 and 1 make a balanced group as soon as they differ."""
    return 4 + 4 * (1 - mixed(rate, 4)), mixed(rate, 8)


shares = st.sampled_from([(0.25, 0.75), (0.0, 1.0), (0.5, 0.5), (0.375, 0.625), (0.1, 0.2)])


def best(found: list[Result], size: int, low: float, high: float) -> tuple[int, ...] | None:
    """Every group there is, and the first of them by the words of the rule."""
    judged = [at for at, each in enumerate(found) if each.reward is not None]
    ideal = round((low + high) / 2 * size)

    def order(group: tuple[int, ...]) -> tuple[object, ...]:
        count = sum(found[at].positive for at in group)
        by_kind = [
            sorted((found[at].truncated, at) for at in group if found[at].positive is kind) for kind in (True, False)
        ]
        return abs(count - ideal), count, by_kind

    groups = [
        group
        for group in combinations(judged, size)
        if ceil(low * size) <= sum(found[at].positive for at in group) <= floor(high * size)
    ]
    return min(groups, key=order, default=None)


@given(results, shares, st.integers(2, 5), st.integers(1, 8), st.booleans())
def test_it_decides_as_brute_force_does(
    found: list[Result], share: tuple[float, float], size: int, stride: int, drop: bool
) -> None:
    rule = Balance(size=size, stride=stride, maximum=8, share_min=share[0], share_max=share[1], drop_on_abort=drop)
    said = rule.decide(found)
    judged = [each for each in found if each.reward is not None]
    group = best(found, size, *share)
    if group is not None and len({found[at].reward for at in group}) > 1:
        assert said == Choose(group, balanced=True)
    elif len(found) < 8:
        assert said == Draw(min(stride, 8 - len(found)))
    elif len(judged) < 2:
        assert said == GiveUp(Dropped.FEWER_THAN_TWO)
    elif len(judged) < size and drop:
        assert said == GiveUp(Dropped.ABORTED)
    elif not any(each.positive for each in judged):
        assert said == GiveUp(Dropped.NO_POSITIVE)
    else:
        relaxed = best(found, min(size, len(judged)), 0, 1)
        assert relaxed is not None
        spread = len({found[at].reward for at in relaxed}) > 1
        assert said == (Choose(relaxed, balanced=False) if spread else GiveUp(Dropped.NO_SPREAD))


@given(st.lists(st.sampled_from([WON, LOST, NULL, Result(1.0, truncated=True)]), min_size=8, max_size=8))
def test_a_chosen_group_can_teach_and_drawing_ends(stream: list[Result]) -> None:
    """Whatever the sessions come to: eight at most, nobody without a reward is chosen, and the chosen differ."""
    rule, drawn = Balance(), list[Result]()
    while isinstance(said := rule.decide(drawn), Draw):
        assert said.count >= 1
        drawn += stream[len(drawn) : len(drawn) + said.count]
    assert len(drawn) <= 8
    if isinstance(said, Choose):
        rewards = [drawn[at].reward for at in said.indices]
        assert None not in rewards
        assert len(set(rewards)) > 1
        assert not said.balanced or 1 <= sum(drawn[at].positive for at in said.indices) <= 3


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ([], Draw(4)),
        ([WON, LOST, LOST, LOST], Choose((0, 1, 2, 3), balanced=True)),
        ([LOST] * 4, Draw(4)),
        ([WON, LOST, NULL, NULL], Draw(4)),
        ([LOST] * 4 + [WON] * 4, Choose((0, 1, 4, 5), balanced=True)),
        ([WON, Result(1.0, truncated=True), NULL, NULL, WON, LOST, LOST, LOST], Choose((0, 4, 5, 6), balanced=True)),
        ([WON, LOST] + [NULL] * 6, Choose((0, 1), balanced=False)),
        ([WON] + [NULL] * 7, GiveUp(Dropped.FEWER_THAN_TWO)),
        ([LOST] * 8, GiveUp(Dropped.NO_POSITIVE)),
        ([WON] * 8, GiveUp(Dropped.NO_SPREAD)),
        ([Result(0.5), WON] * 4, Choose((0, 1, 2, 3), balanced=False)),
    ],
)
def test_the_rule_by_hand(drawn: list[Result], said: object) -> None:
    """Field case 170: a group of one has nothing to compare, and is dropped under its reason."""
    assert Balance().decide(drawn) == said


def test_orchards_rule_drops_a_group_that_aborted_sessions_left_short() -> None:
    short = [WON, LOST] + [NULL] * 6
    assert Balance(drop_on_abort=True).decide(short) == GiveUp(Dropped.ABORTED)
    assert Balance(drop_on_abort=True).decide([WON, LOST, LOST, LOST, NULL]) == Choose((0, 1, 2, 3), balanced=True)


def test_the_pass_rate_is_that_of_all_who_were_judged() -> None:
    """A chosen group of half and half says nothing of a task that is won once in eight."""
    drawn = [LOST] * 7 + [WON, NULL]
    assert pass_rate(drawn) == 1 / 8
    assert pass_rate([NULL]) is None


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"size": 1}, "--group-size"),
        ({"maximum": 3}, "--draw-max"),
        ({"stride": 0}, "0 at a time"),
        ({"share_min": 0.8}, "0.8"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(wrong: dict[str, float], named: str) -> None:
    with pytest.raises(BadInput) as caught:
        Balance(**wrong)  # type: ignore[arg-type]
    assert named in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("rule", "expected"), [(ADAPTIVE, adaptive), (PLAIN, plain)])
def test_what_it_costs_is_what_the_binomial_says(
    rule: Balance, expected: Callable[[float], tuple[float, float]], rate: float
) -> None:
    found = spent(rule, rate)
    assert (found.drawn, found.kept) == pytest.approx(expected(rate))


def test_the_table_says_where_nothing_is_saved_and_stands_in_the_docs() -> None:
    found = {row.rate: row for row in rows()}
    half = found[0.5]
    assert half.adaptive.per_group is not None
    assert half.plain.per_group is not None
    assert half.adaptive.per_group < 0.6 * half.plain.per_group
    for hopeless in (0.0, 1.0):
        assert found[hopeless].adaptive.per_group is None, "no group can be had, and all that is drawn is lost"
    text = table(list(found.values()))
    assert "none" in text
    docs = (Path(__file__).parents[2] / "docs" / "rollouts.md").read_text()
    assert text in docs, "write the table anew: python -m forge.rollouts.simulation"
