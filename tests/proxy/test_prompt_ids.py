"""Prompt ids by comparison: whatever an engine writes, they are what a parser finds."""

from __future__ import annotations

import json
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.engines import answers
from forge.proxy.engines.prompt_ids import FOLD_FROM, MARK, PromptIds, fold
from forge.proxy.engines.shapes import decode_stream
from forge.proxy.recording.memory import Memory

IDS = st.lists(st.integers(0, 160_000), max_size=30)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), IDS), min_size=1, max_size=8), SEPARATORS)
def test_a_prompt_is_read_alike_whatever_came_before(
    script: list[tuple[int, int, list[int]]], by: tuple[str, str]
) -> None:
    """Prompts that extend, cut, repeat and change earlier ones; also where a number goes on with other digits."""
    prompts, memory = [[1, 12, 123]], PromptIds()
    for of, keep, new in script:
        prompts.append([*prompts[of % len(prompts)][:keep], *new])
    for ids in prompts:
        text = json.dumps(ids, separators=by)[1:-1].encode()
        assert list(memory.read(text)) == ids


def test_what_is_no_list_of_ids_is_an_error_as_ever() -> None:
    memory = PromptIds()
    memory.read(b"1,2,3")
    for text in (b"1,2,x", b"1,2,3,", b"1,2,3,,4", b'1,2,"3"', b"1,2,3 4"):
        with pytest.raises(msgspec.DecodeError):
            memory.read(text)
    with pytest.raises(OverflowError):
        memory.read(b"1,2,3,99999999999")


def whole(ids: list[int], words: str, **more: object) -> bytes:
    """A body that is long enough to be folded."""
    choice = {"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop", "token_ids": [5]}
    return json.dumps({"choices": [choice], "usage": None, "prompt_token_ids": ids, **more}).encode()


LONG = list(range(2000))
HOSTILE = [
    'say "prompt_token_ids":[1,2]',
    '\\"prompt_token_ids\\":[9]',
    '"prompt_token_ids"',
    "]" * 50,
    '{"prompt_token_ids": [-7]}',
]


@pytest.mark.parametrize("words", HOSTILE)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"metadata": {"prompt_token_ids": [1, 2, 3]}},
        {"x": {"prompt_token_ids": LONG}},
        {"prompt_token_ids": [[1]]},
        {"prompt_token_ids": None},
        {"prompt_token_ids": [MARK]},
        {"prompt_token_ids": [*LONG, 2**40]},
        {"prompt_token_ids": [*LONG, None]},
        {"sglext": {"input_ids": LONG}},
        {"input_ids": LONG},
    ],
)
def test_a_hostile_answer_is_read_as_without_memory(words: str, more: dict[str, object]) -> None:
    body = whole(LONG, words * (FOLD_FROM // len(words)), **more)
    assert len(body) >= FOLD_FROM
    said = []
    for memory in (None, PromptIds()):
        try:
            (token,) = answers.read_whole(body, memory)
            said.append((token.prompt_ids.tolist(), token.output_ids.tolist(), token.message))
        except ValueError as failure:
            said.append(str(failure))  # type: ignore[arg-type]
    assert said[0] == said[1]


def test_ids_are_folded_where_it_is_sure() -> None:
    folded = fold(whole(LONG, "plain"))
    assert folded is not None
    assert len(folded.document) < 300
    quoted = fold(whole(LONG, 'a "prompt_token_ids":[1]'))
    assert quoted is not None, "what is quoted is no key"
    assert json.loads(b"[" + quoted.text + b"]") == LONG
    assert fold(whole(LONG, "two", x={"prompt_token_ids": LONG})) is None
    assert fold(whole([1], "short")) is None


def stream(events: list[bytes], end: bytes = b"data: [DONE]\n\n") -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in events) + end


def chunk(text: str, ids: list[int], **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": ids, "finish_reason": None}
    return json.dumps({"choices": [choice], **more}).encode()


@pytest.mark.parametrize(
    "end", [b"data: [DONE]\n\n", b"", b"data: [DONE]", b": bye\n\n", b"data: {\n\n", b"event: x\n\n"]
)
@pytest.mark.parametrize("between", [b"", b": keepalive\n\n", b"\n\n", b'{"choices":[]}\n\n', b"id: 7\n\n"])
def test_a_stream_at_once_says_what_its_events_say(between: bytes, end: bytes) -> None:
    text = 'data: {"a":1}\n\ndata: '
    events = [chunk("", [], prompt_token_ids=LONG), chunk(text, [1]), chunk("b", [2, 3])]
    body = stream(events[:2], between) + stream(events[2:], end)
    at_once, memory = answers.read_stream(body, PromptIds()), None
    (token,) = at_once
    (slow,) = answers.read_stream(body.replace(b"\n", b"\r\n"), memory)  # never at once
    assert (token.message, token.output_ids.tolist()) == (slow.message, slow.output_ids.tolist())
    assert np.array_equal(token.prompt_ids, slow.prompt_ids)
    assert token.prompt_ids.tolist() == LONG


def test_an_event_in_two_pieces_is_two_events() -> None:
    body = b'data: {"choices":[\n\ndata: ]}\n\n'
    assert decode_stream(body) is None
    with pytest.raises(ValueError, match="no events"):
        answers.read_stream(body)


def test_the_memory_of_sessions_is_bounded_and_what_falls_out_is_read_again() -> None:
    memory, chance = Memory(limit=50_000), random.Random(3)
    prompts = {f"s{n}": list(range(n, n + 1000)) for n in range(20)}
    for _ in range(200):
        name = chance.choice(list(prompts))
        prompts[name].append(chance.randrange(1000))
        read = memory.of(name).prompts.read(",".join(map(str, prompts[name])).encode())
        assert list(read) == prompts[name]
        assert memory.held <= 50_000 + 20_000, "the limit, and the one in hand"
