"""The harness's own record against ours, as values."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.adapters.harnesses.base import Heard
from forge.storage.records import Call, CallKind, CallStatus
from forge.transcripts import Comparison, Kind, Verdict, compare

COUNTS = st.tuples(st.integers(1, 40), st.integers(1, 9))


def call(number: int, prompt: int, output: int, **more: Any) -> Call:
    ids = {"prompt_ids": np.arange(prompt, dtype=np.int32), "output_ids": np.arange(output, dtype=np.int32)}
    known = Call(call_id=f"c{number}", run_id="r", session_id="s", seq=number, **ids)
    return replace(known, **more)


def calls(*counts: tuple[int, int]) -> list[Call]:
    return [call(number, *each) for number, each in enumerate(counts)]


def kinds(found: Comparison) -> list[tuple[Kind, str | None]]:
    return [(each.kind, each.call_id) for each in found.differences]


def test_no_record_is_no_difference() -> None:
    assert compare(None, calls((3, 4))).verdict is Verdict.NONE


@given(st.lists(COUNTS, max_size=8), st.randoms(use_true_random=False), st.booleans())
def test_the_same_calls_agree_in_any_order(counts: list[tuple[int, int]], random: Random, silent: bool) -> None:
    """Sub-agents run in parallel, and some harnesses count only one of the two sides."""
    heard = [Heard(prompt, None if silent else output) for prompt, output in counts]
    random.shuffle(heard)
    found = compare(heard, calls(*counts))
    assert (found.verdict, found.heard, found.recorded) == (Verdict.OK, len(counts), len(counts))


@given(st.lists(COUNTS, min_size=1, max_size=8), st.data())
def test_a_call_that_one_side_lacks_is_named(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(counts) - 1))
    heard = [Heard(*each) for each in counts]
    fewer_heard = compare(heard[:gone] + heard[gone + 1 :], calls(*counts))
    ((kind, call_id),) = kinds(fewer_heard)
    assert kind is Kind.UNHEARD
    assert call_id is not None
    assert counts[int(call_id[1:])] == counts[gone], "one of those that look like it"
    rows = calls(*counts)
    assert kinds(compare(heard, rows[:gone] + rows[gone + 1 :])) == [(Kind.UNRECORDED, None)]


@given(st.lists(COUNTS, min_size=1, max_size=8), st.data())
def test_counts_that_differ_are_named_with_their_call(counts: list[tuple[int, int]], data: st.DataObject) -> None:
    wrong = data.draw(st.integers(0, len(counts) - 1))
    heard = [Heard(*each) for each in counts]
    heard[wrong] = Heard(1000, 1000)
    ((kind, call_id),) = kinds(compare(heard, calls(*counts)))
    assert kind is Kind.TOKENS
    assert counts[int((call_id or "")[1:])] == counts[wrong]


@pytest.mark.parametrize(
    "more",
    [
        {"status": CallStatus.ABORTED},
        {"status": CallStatus.ERROR},
        {"status": CallStatus.TRUNCATED},
        {"kind": CallKind.TITLE},
        {"kind": CallKind.SUBAGENT},
        {"kind": CallKind.COMPACTION},
    ],
)
def test_what_a_harness_need_not_write_down(more: dict[str, str]) -> None:
    rows = [call(0, 5, 2, **more), call(1, 7, 3)]
    assert compare([Heard(7, 3)], rows).verdict is Verdict.OK
    assert compare([Heard(5, 2), Heard(7, 3)], rows).verdict is Verdict.OK, "but may"


def test_of_a_call_that_broke_off_any_count_is_right_but_not_two_calls() -> None:
    rows = [call(0, 5, 2, status=CallStatus.ABORTED), call(1, 7, 3)]
    assert compare([Heard(0, 0), Heard(7, 3)], rows).verdict is Verdict.OK
    assert kinds(compare([Heard(0, 0), Heard(0, 0), Heard(7, 3)], rows)) == [(Kind.UNRECORDED, None)]
    # The failed call's line is not taken for the good one's.
    assert kinds(compare([Heard(0, 0), Heard(7, 4)], rows)) == [(Kind.TOKENS, "c1")]


def test_a_side_call_with_other_counts_is_a_difference() -> None:
    assert kinds(compare([Heard(5, 9)], [call(0, 5, 2, kind=CallKind.TITLE)])) == [(Kind.UNRECORDED, None)]


def test_of_a_retry_and_what_it_repeats_one_is_enough() -> None:
    rows = [call(0, 5, 2), call(1, 5, 4, retry_of="c0")]
    assert compare([Heard(5, 4)], rows).verdict is Verdict.OK
    assert kinds(compare([], rows)) == [(Kind.UNHEARD, "c1")]


def test_a_harness_that_was_killed_need_not_have_its_last_call() -> None:
    rows = calls((5, 2), (7, 3))
    assert compare([Heard(5, 2)], rows, ended=False).verdict is Verdict.OK
    assert kinds(compare([Heard(5, 2)], rows, ended=True)) == [(Kind.UNHEARD, "c1")]


def test_choices_of_one_call_are_one_call_and_an_engines_own_count_stands_in() -> None:
    rows = [call(0, 5, 2), replace(call(0, 5, 3), choice=1)]
    assert compare([Heard(5, 5)], rows).verdict is Verdict.OK
    bare = call(0, 0, 0, prompt_tokens=5, completion_tokens=2)
    assert compare([Heard(5, 2)], [bare]).verdict is Verdict.OK
    assert kinds(compare([Heard(5, 3)], [bare])) == [(Kind.TOKENS, "c0")]


def test_differences_read_as_sentences_and_are_kept_as_json() -> None:
    found = compare([Heard(5, None), Heard(None, 9)], calls((6, 2)))
    assert [str(each) for each in found.differences] == [
        "call c0: the harness counts ? + 9 tokens, we 6 + 2 tokens",
        "the harness counts a call of 5 + ? tokens that has no row",
    ]
    assert found.told()["differences"][1] == {
        "kind": "unrecorded",
        "call_id": None,
        "text": "the harness counts a call of 5 + ? tokens that has no row",
    }
