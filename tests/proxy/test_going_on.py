"""What goes on from ids and what cannot, where a stop string or a character is cut in two, and the end that is made."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.engines.base import INEXACT, GivenUp, Question
from forge.proxy.engines.going_on import check_carries, limits, mended, stopped
from forge.proxy.engines.rest import Said, missing, said
from tests.engine import Turn
from tests.proxy.goings_on import given_up, told
from tests.proxy.serving import calls, serving
from tests.proxy.test_output_limit import TOGETHER, refused
from tests.scale_out import DERENDER, GENERATE, RENDER, ScaleOutEngine

TURN = Turn("one two three four five")


def so_far(*pieces: str) -> GivenUp:
    return GivenUp([1, 2], list(range(len(pieces))), "a", 1, list(pieces), "".join(pieces), True)


@given(st.text("ab<", max_size=12), st.integers(0, 12), st.lists(st.text("ab<", min_size=1, max_size=3), max_size=3))
def test_a_stop_string_is_found_wherever_the_cut_lies(text: str, cut: int, stops: list[str]) -> None:
    """Field case 149. Each character is a token; none ended before the cut, or the engine would have stopped there."""
    ends = [at + len(stop) for stop in stops if (at := text.find(stop)) >= 0]
    first = min(ends, default=None)
    cut = min(cut, len(text) if first is None else first - 1)
    found = stopped(list(text[:cut]), list(text[cut:]), stops)
    if first is None:
        assert found is None
        return
    assert found is not None
    assert cut + found.tokens == first
    assert text[:first] == text[: first - len(found.over)] + found.string


def test_a_stop_string_may_end_within_a_token() -> None:
    found = stopped(["Hel", "lo w"], ["orld, ", "and"], ["wor"])
    assert found == ("wor", 1, "world, ")
    assert stopped(["Hel", "lo w"], ["orld, ", "and"], ["wor"], include=True) == ("wor", 1, "ld, ")


@pytest.mark.parametrize(
    "params",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1},
        {"seed": 7},
        {"sampling_seed": 7, "temperature": 0.3},
        {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"bad_words": ["no"]},
        {"echo": True},
    ],
)
def test_what_an_engine_remembers_beyond_ids_is_not_carried(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cannot be carried over"):
        check_carries(params)


def test_what_ids_say_all_of_is_carried() -> None:
    check_carries({"temperature": 0, "seed": 7, "top_p": 0.5, "stop": ["x"], "bad_words": [], "tool_choice": "auto"})
    check_carries({"response_format": {"type": "text"}, "presence_penalty": 0.0, "structured_outputs": None})


def test_limits_count_down_and_never_to_nothing() -> None:
    given = so_far("a", "b", "c")
    assert limits({"max_tokens": 10, "min_tokens": 2, "max_completion_tokens": None}, given) == {
        "max_tokens": 7,
        "min_tokens": 0,
    }
    with pytest.raises(ValueError, match="left"):
        limits({"max_tokens": 3}, given)


def answered(steps: Generator[Question, bytes, str | None], answer: dict[str, Any]) -> tuple[Question, str | None]:
    question = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(json.dumps(answer).encode())
    return question, end.value.value


def test_a_character_that_is_cut_in_two_is_given_to_the_token_that_completes_it() -> None:
    """As vLLM 0.32 writes the tokens of a part: with no text, also the last one, where the rest was a prompt."""
    rest = Said([7, 8, 9], [{"token": ""}, {"token": ""}, {"token": "!"}], finish_reason="length")
    question, text = answered(mended(so_far("Hi", ""), rest, "policy"), {"prompt": "Hi \U0001f600!"})
    assert json.loads(question.body or b"") == {"tokens": [0, 1, 7, 8, 9], "model": "policy"}
    assert text == "Hi \U0001f600!"
    assert [entry["token"] for entry in rest.log_probs] == ["", " \U0001f600", "!"]


def test_a_cut_between_characters_asks_nothing() -> None:
    with pytest.raises(StopIteration) as end:
        next(mended(so_far("Hi"), Said([7], [{"token": "!"}], finish_reason="length"), None))
    assert end.value.value is None


@pytest.mark.parametrize(
    ("given", "whole", "delta"),
    [
        ({"content": "ab"}, {"content": "abcd"}, {"content": "cd"}),
        ({"content": "\n\nab"}, {"content": "abcd"}, {"content": "cd"}),
        ({"content": "ab \n"}, {"content": "ab"}, {}),
        ({}, {"reasoning_content": "hm", "content": "a"}, {"reasoning_content": "hm", "content": "a"}),
        ({"reasoning": "h"}, {"reasoning": "hm", "content": None}, {"reasoning": "m"}),
    ],
)
def test_the_rest_is_what_the_client_does_not_have(given: Any, whole: Any, delta: Any) -> None:
    assert missing(given, whole) == delta


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ({"content": "ax"}, {"content": "abcd"}),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}, {"content": "f"}),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": ""}}]},
            {"tool_calls": [{"id": "1", "function": {"name": "g", "arguments": ""}}]},
        ),
    ],
)
def test_a_message_that_begins_otherwise_is_not_taken(given: Any, whole: Any) -> None:
    with pytest.raises(ValueError, match=r"given|name"):
        missing(given, whole)


@pytest.mark.parametrize("body", [b"nonsense", b"{", b'data: {"choices": [{}]}\n\n', b'data: {"choices": 7}\n\n'])
def test_an_answer_that_cannot_be_read_is_no_rest(body: bytes) -> None:
    with suppress(*INEXACT):
        assert said(body).finish_reason is None


NOT_NOW: dict[str, Any] = {
    RENDER: {"token_ids": [1], "sampling_params": {}},
    GENERATE: {"choices": [{"index": 0, "token_ids": [1], "finish_reason": "stop"}]},
    DERENDER: {"choices": [{"message": {"content": "other"}}], "chunk": {"choices": [{"delta": {"content": "other"}}]}},
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("fault", [*NOT_NOW, "penalty", "grammar", "seed", "disabled"])
async def test_where_the_rest_is_not_exact_the_row_is_aborted(tmp_path: Path, stream: bool, fault: str) -> None:
    """A prompt that is rendered otherwise now, a rest without log probs, a message that is another, a penalty...; a
    whole body has nothing that could contradict the message."""
    engine = ScaleOutEngine(scale_out=fault != "disabled")
    members: dict[str, Any] = {
        "penalty": {"presence_penalty": 0.5},
        "grammar": {"structured_outputs": {"regex": "a"}},
        "seed": {"seed": 3},
    }.get(fault, {})
    async with serving(tmp_path, engine) as s:
        engine.script(TURN)
        if fault in NOT_NOW:
            engine.instead[fault] = NOT_NOW[fault]
        status, text = await given_up(s, "chat", stream=stream, after=3, **members)
        (row,) = calls(s.data)
        if fault == DERENDER and not stream:
            assert (status, told("chat", text)["text"]) == (200, "other")
            assert row.untrainable_reason == "text_mismatch"
            return
        assert "generation_aborted" in text
        assert (row.status, row.trainable) == ("aborted", False)
        assert row.output_ids.tolist() == engine.served[0].output_ids


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_call_whose_limit_was_taken_out_goes_on(tmp_path: Path, stream: bool) -> None:
    """Its remaining budget is what the server says that fits beside the prompt."""
    async with serving(tmp_path, ScaleOutEngine()) as s:
        s.engine.script(refused(TOGETHER), TURN)
        status, text = await given_up(s, "chat", stream=stream, after=3, max_tokens=4000)
        assert (status, told("chat", text)["text"]) == (200, "one two three four five")
        (row,) = calls(s.data)
        assert (row.status, row.trainable, row.finish_reason) == ("ok", True, "stop")
        assert json.loads(row.edits or "[]") == [{"edit": "max_tokens", "asked": 4000, "sent": None}]
        prompt = len(s.engine.served[1].prompt_ids)
        assert json.loads(s.engine.served[2].body)["sampling_params"]["max_tokens"] == 4096 - prompt - 3
