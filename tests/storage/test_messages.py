"""Messages taken apart once: whatever a session sends, they are what a parser finds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.messages import REPLACED, Messages, joined

MESSAGE = st.one_of(
    st.integers(0, 200),
    st.text(max_size=4),
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": st.text(max_size=3)}),
    st.lists(st.integers(0, 3), max_size=2),
)
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", ":")])
STEP = st.tuples(st.integers(0, 9), st.integers(0, 6), st.lists(MESSAGE, max_size=3), SEPARATORS)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=8))
def test_prompts_are_taken_apart_alike_whatever_came_before(script: list[tuple[int, int, list[Any], Any]]) -> None:
    prompts: list[list[Any]] = [[1, 12]]
    memory = Messages()
    for of, keep, new, by in [(0, 2, [], (",", ":")), *script]:
        prompts.append([*prompts[of % len(prompts)][:keep], *new])
        text = json.dumps(prompts[-1], separators=by)
        pieces = memory.read(text)
        assert [msgspec.json.decode(piece.text) for piece in pieces] == prompts[-1]
        assert [piece.text for piece in pieces] == [piece.text for piece in Messages().read(text)]


def test_a_message_that_is_repeated_is_the_same_object() -> None:
    memory = Messages()
    first = memory.read('[{"a":1},{"b":2}]')
    again = memory.read('[{"a":1}, {"b":2} , 3]')
    assert again[0] is first[0]
    assert again[1] is first[1]
    assert joined(again, 1) == '[{"b":2},3]'


def test_what_is_no_array_is_none_also_after_one() -> None:
    memory = Messages()
    assert memory.read("[1,2]")
    for text in ("[1,2", "[1,2,]", "[1,2]x", "1,2]", "{}", "", "[1 2]", "[12", "[1,2,,3]", "[1,2}"):
        assert memory.read(text) == [], text
    assert [piece.text for piece in memory.read("[1,2,3]")] == ["1", "2", "3"]


def test_a_prompt_takes_the_place_of_the_one_that_it_goes_on_with_but_for_its_last_messages() -> None:
    memory = Messages()
    history = ["x" * 1000] * 20
    memory.read(json.dumps(history))
    held = memory.size
    for number in range(10):
        memory.read(json.dumps([*history[: 20 - number % REPLACED], number]))
    assert memory.size < 2 * held
    memory.read(json.dumps(["y" * 1000] * 20))
    assert memory.size > 2 * held - 4 * REPLACED * 1000, "another agent's is kept beside it"
