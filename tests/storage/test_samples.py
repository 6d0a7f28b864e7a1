"""Rows worked out by hand: where the masks lie, which reply is trained, what is cut and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forge.storage.errors import BadInput
from forge.storage.recipe import Recipe
from forge.storage.records import Call, Purpose, Selection, Session
from forge.storage.samples import derive, samples_of

SESSION = Session(session_id="s", run_id="r", task_id="t", group_id="g", rollout_index=2, reward=0.5,
                  reward_status="graded", reward_components='{"tests": 0.5}')  # fmt: skip
USER = {"role": "user", "content": "go"}


def call(name: str, prompt: list[int], output: list[int], **changes: Any) -> Call:
    """A call whose text says nothing: only ids count here."""
    fields: dict[str, Any] = {
        "call_id": name, "run_id": "r", "session_id": "s", "seq": ord(name[0]), "messages": json.dumps([USER]),
        "response": json.dumps({"role": "assistant", "content": name}), "finish_reason": "stop", "model_served": "m",
        "prompt_ids": np.array(prompt, np.int32), "output_ids": np.array(output, np.int32),
        "output_log_probs": np.array([-0.25 * (i + 1) for i in range(len(output))], np.float32),
        "sampling_sent": '{"temperature": 0.7, "top_p": 1.0}', "logprobs_mode": "processed",
        "policy_version_start": 3, "policy_version_end": 3, "trainable": True,
        "start_us": ord(name[0]) * 100, "end_us": 10,
    }  # fmt: skip
    return Call(**(fields | changes))


def test_two_turns_are_one_row() -> None:
    (row,) = samples_of(SESSION, [call("a", [1, 2], [3, 4]), call("b", [1, 2, 3, 4, 5, 6], [7])])
    assert row.prompt_ids.tolist() == [1, 2]
    assert row.response_ids.tolist() == [3, 4, 5, 6, 7]
    assert row.response_mask.tolist() == [1, 1, 0, 0, 1]
    np.testing.assert_array_equal(row.rollout_log_probs, np.array([-0.25, -0.5, np.nan, np.nan, -0.25], np.float32))
    assert (row.turn_starts, row.turn_ends, row.turn_call_ids) == ([0, 4], [2, 5], ["a", "b"])
    assert (row.sample_id, row.row_index, row.row_count) == ("s-0", 0, 1)
    assert (row.task_id, row.group_id, row.rollout_index, row.reward) == ("t", "g", 2, 0.5)
    assert row.session_trainable_tokens == 3
    assert (row.policy_version_min, row.policy_version_max, row.token_versions) == (3, 3, [3, 3])
    assert (row.temperature, row.logprobs_mode) == (0.7, "processed")
    assert (row.finish_reason, row.truncated, row.join_cause) == ("stop", False, "root")
    assert (row.trainable, row.untrainable_reason) == (True, None)
    assert json.loads(row.messages or "")[-1] == {"role": "assistant", "content": "b"}


def test_a_shared_reply_is_trained_in_the_earliest_leaf() -> None:
    """a was continued twice, by b and by c."""
    first, second = samples_of(
        SESSION, [call("a", [1], [2, 3]), call("b", [1, 2, 3, 4], [5]), call("c", [1, 2, 3, 6], [7])]
    )
    assert first.response_mask.tolist() == [1, 1, 0, 1]
    assert second.response_mask.tolist() == [0, 0, 0, 1]
    assert second.turn_call_ids == ["a", "c"]
    assert first.session_trainable_tokens == second.session_trainable_tokens == 4


def test_a_discarded_retry_does_not_take_the_shared_reply_with_it() -> None:
    """b and c answer one prompt; d goes on from c. The row that trains a is the one that goes on."""
    done = derive(
        SESSION,
        [
            call("a", [1], [2]),
            call("b", [1, 2, 3], [4, 4]),
            call("c", [1, 2, 3], [5], retry_of="b"),
            call("d", [1, 2, 3, 5, 6], [7]),
        ],
    )
    (row,) = done.samples
    assert row.turn_call_ids == ["a", "c", "d"]
    assert row.response_mask.tolist() == [1, 0, 1, 0, 1]
    assert done.excluded == [("b", 0, "discarded_retry", 2)]


def test_without_a_continuation_the_last_try_is_the_answer() -> None:
    tries = [call("b", [1], [2]), call("c", [1], [3], retry_of="b"), call("d", [1], [4], retry_of="c")]
    done = derive(SESSION, tries)
    assert [row.turn_call_ids for row in done.samples] == [["d"]]
    assert [e.reason for e in done.excluded] == ["discarded_retry"] * 2
    unlinked = [replace(t, retry_of=None) for t in tries]
    assert len(samples_of(SESSION, unlinked)) == 3, "three samples of one prompt are no retries"


def test_parallel_calls_on_one_prompt_are_no_retries() -> None:
    one, two = call("a", [1], [2], start_us=0, end_us=50), call("b", [1], [3], start_us=20, end_us=50)
    goes_on = call("c", [1, 2, 9], [4])
    assert len(samples_of(SESSION, [one, two, goes_on])) == 2
    later = replace(two, start_us=60)
    assert len(samples_of(SESSION, [one, later, goes_on])) == 1


def test_an_untrainable_turn_keeps_the_row_going() -> None:
    done = derive(
        SESSION,
        [
            call("a", [1], [2], trainable=False, untrainable_reason="constrained"),
            call("b", [1, 2, 3], [4], kind="title"),
            call("c", [1, 2, 3, 4, 5], [6]),
            call("d", [8], [9], trainable=False, untrainable_reason="log_probs_missing"),
        ],
    )
    (row,) = done.samples
    assert row.response_mask.tolist() == [0, 0, 0, 0, 1]
    assert row.kinds == ["main", "title"]
    assert row.trainable
    assert row.untrainable_reason == "constrained,kind"
    assert [(e.call_id, e.reason) for e in done.excluded] == [
        ("a", "constrained"), ("b", "kind"), ("d", "log_probs_missing"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output_log_probs": np.array([-1], np.float32)}, "length_mismatch"),
        ({"output_log_probs": np.array([-1, np.nan], np.float32)}, "log_probs_invalid"),
        ({"output_log_probs": np.array([-1, 0.5], np.float32)}, "log_probs_invalid"),
        ({"status": "truncated"}, "status"),
        ({"prompt_ids": np.empty(0, np.int32)}, "prompt_ids_missing"),
        ({"output_ids": np.empty(0, np.int32), "output_log_probs": np.empty(0, np.float32)}, "no_tokens"),
    ],
)
def test_what_the_decoder_let_through_is_stopped_here(changes: dict[str, Any], reason: str) -> None:
    done = derive(SESSION, [call("a", [1], [2, 3], **changes)])
    assert done.samples == []
    assert [e.reason for e in done.excluded] == [reason]


def test_a_long_row_loses_its_end() -> None:
    calls = [call("a", [1, 2], [3, 4]), call("b", [1, 2, 3, 4, 5, 6], [7, 8, 9])]
    done = derive(SESSION, calls, Recipe(max_tokens=7))
    (row,) = done.samples
    assert row.prompt_ids.tolist() + row.response_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert row.turn_ends == [2, 5]
    assert row.truncated
    assert done.excluded == [("b", 0, "too_long", 2)]
    (row,) = derive(SESSION, calls, Recipe(max_tokens=6)).samples
    assert row.response_ids.tolist() == [3, 4], "no trained token follows, so neither do its template tokens"
    assert json.loads(row.messages or "")[-1]["content"] == "a"
    assert derive(SESSION, calls, Recipe(max_tokens=2)).samples == []


def test_version_spans_and_ranges() -> None:
    spans = call("a", [1], [2, 3, 4], version_spans="[[3,0,1],[4,1,3]]", policy_version_end=4)
    straddles = call("b", [1, 2, 3, 4, 5], [6], policy_version_start=4, policy_version_end=6)
    unknown = call("c", [1, 2, 3, 4, 5, 6, 7], [8], policy_version_start=None, policy_version_end=None)
    (row,) = samples_of(SESSION, [spans, straddles, unknown])
    assert row.token_versions == [3, 1, 4, 3, -1, 1]
    assert (row.policy_version_min, row.policy_version_max) == (3, 6)


def test_what_differs_between_turns_is_null() -> None:
    hot = call("b", [1, 2, 3], [4], sampling_sent='{"temperature": 1.0}', logprobs_mode="raw")
    (row,) = samples_of(SESSION, [call("a", [1], [2]), hot])
    assert (row.temperature, row.logprobs_mode) == (None, None)
    (row,) = samples_of(SESSION, [call("a", [1], [2], sampling_sent=None)])
    assert row.temperature is None, "a default of the engine's is not known"


@pytest.mark.parametrize("temperature", ["1e999", "9" * 6000, '"hot"', "[]", "null"])
def test_a_temperature_that_is_no_number_stops_no_row(temperature: str) -> None:
    """An engine may accept it; the decoder would die of that call again at each start."""
    sent = f'{{"temperature": {temperature}, "seed": {"9" * 6000}}}'
    (row,) = samples_of(SESSION, [call("a", [1], [2], sampling_sent=sent)])
    assert row.temperature is None


def test_equal_placeholders_with_another_image_are_no_join() -> None:
    one = call("a", [1, 99, 99], [2], media='["x"]')
    same, other = (
        call("b", [1, 99, 99, 2, 3], [4], media='["x", "z"]'),
        call("b", [1, 99, 99, 2, 3], [4], media='["y"]'),
    )
    assert [row.media for row in samples_of(SESSION, [one, same])] == ['["x", "z"]']
    rows = samples_of(SESSION, [one, other])
    assert [(row.media, row.join_cause) for row in rows] == [('["x"]', "root"), ('["y"]', "edited")]
    moved = call("b", [1, 99, 99, 2, 3], [4], media='["x"]', model_served="other")
    assert len(samples_of(SESSION, [one, moved])) == 2


def test_an_evaluation_is_no_training_data() -> None:
    (row,) = samples_of(replace(SESSION, purpose=Purpose.EVAL), [call("a", [1], [2])])
    assert (row.trainable, row.untrainable_reason, row.session_trainable_tokens) == (False, "eval", 0)


def test_a_session_that_was_not_selected_keeps_its_reward_and_trains_nothing() -> None:
    (row,) = samples_of(replace(SESSION, selection=Selection.NOT_SELECTED, reward=1.0), [call("a", [1], [2])])
    assert (row.trainable, row.untrainable_reason, row.session_trainable_tokens) == (False, "not_selected", 0)
    assert row.reward == 1.0


def test_a_turn_that_ended_by_length_is_flagged_and_may_go_on() -> None:
    short = call("a", [1], [2], finish_reason="length")
    (row,) = samples_of(SESSION, [short, call("b", [1, 2, 3], [4])])
    assert row.truncated
    assert row.response_mask.tolist() == [1, 0, 1]


def test_recipes_are_told_apart_by_their_hash() -> None:
    assert Recipe(kinds=("main", "subagent")).hash == Recipe(kinds=("subagent", "main")).hash
    assert len({Recipe().hash, Recipe(max_tokens=9).hash, Recipe(kinds=("main",)).hash}) == 3
    with pytest.raises(BadInput, match="teapot"):
        Recipe(kinds=("teapot",))


def test_a_recipe_may_leave_out_cut_turns_and_those_of_two_versions() -> None:
    """Field case 172: a call that straddled a weight update is trained or not by choice, never by accident."""
    cut = call("a", [1], [2, 2], finish_reason="length")
    straddling = call("b", [1, 2, 2, 3], [4], policy_version_start=3, policy_version_end=4)
    last = call("c", [1, 2, 2, 3, 4, 5], [6])
    (row,) = samples_of(SESSION, [cut, straddling, last])
    assert row.response_mask.tolist() == [1, 1, 0, 1, 0, 1]
    strict = Recipe(name="strict", truncated=False, straddling=False)
    done = derive(SESSION, [cut, straddling, last], strict)
    assert done.samples[0].response_mask.tolist() == [0, 0, 0, 0, 0, 1]
    assert done.excluded == [("a", 0, "truncated", 2), ("b", 0, "straddling", 1)]
    assert b"truncated" in strict.to_json()
    assert b"truncated" not in Recipe(name="default").to_json(), "older sets keep the bytes of their recipe"
