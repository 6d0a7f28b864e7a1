"""The normal form of messages: what counts as the same text, and that nothing a harness sends breaks it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.storage.delta import Chain
from forge.storage.records import Call
from forge.storage.trajectory import Placer, build

USER = {"role": "user", "content": "go"}
TOOL = {"role": "tool", "tool_call_id": "x1", "content": "ok"}


def calls(reply: dict[str, Any], as_repeated: dict[str, Any]) -> list[Call]:
    """A reply, and a second prompt with other ids that repeats it in its own way."""
    first = Call(call_id="a", run_id="r", session_id="s", seq=0, messages=json.dumps([USER]),
                 response=json.dumps(reply), prompt_ids=np.array([1, 2], np.int32),
                 output_ids=np.array([3, 4], np.int32))  # fmt: skip
    second = Call(call_id="b", run_id="r", session_id="s", seq=1, messages=json.dumps([USER, as_repeated, TOOL]),
                  prompt_ids=np.array([1, 2, 9, 4, 5], np.int32), output_ids=np.array([6], np.int32))  # fmt: skip
    return [first, second]


def tool_call(arguments: Any, id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "run", "arguments": arguments}}


@pytest.mark.parametrize(
    ("reply", "repeated", "cause"),
    [
        ({"content": "fish"}, {"content": "fish"}, "retokenized"),
        ({"content": "fish\n"}, {"content": [{"type": "text", "text": "fish"}]}, "retokenized"),
        (
            {"content": None, "tool_calls": [tool_call('{"a": 1, "b": [2]}')]},
            {"content": "", "tool_calls": [tool_call('{"b":[2],"a":1}', id="other")]},
            "retokenized",
        ),
        ({"content": "", "tool_calls": [tool_call("")]}, {"content": "", "tool_calls": [tool_call("{}")]}, "edited"),
        ({"content": "<think>hm</think>yes"}, {"content": "yes"}, "thinking_stripped"),
        ({"content": "yes", "reasoning": "hm"}, {"content": "yes"}, "thinking_stripped"),
        # the thinking stands in another field, and the template dropped it all the same: the ids part in that reply
        ({"content": "<think>hm</think>yes"}, {"content": "yes", "reasoning_content": "hm"}, "thinking_stripped"),
        ({"content": "a long tale"}, {"content": "a lo..."}, "edited"),
        (
            {"content": "", "tool_calls": [tool_call('{"a": 1}')]},
            {"content": "", "tool_calls": [tool_call('{"a": 2}')]},
            "edited",
        ),
    ],
)
def test_same_text_or_not(reply: dict[str, Any], repeated: dict[str, Any], cause: str) -> None:
    nodes = build(calls({"role": "assistant", **reply}, {"role": "assistant", **repeated})).nodes
    assert nodes[1].placement.join_cause == cause
    assert nodes[0].used == (cause != "edited")


def test_other_tools_are_an_edit() -> None:
    first, second = calls({"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x"})
    placer = Placer()
    placer.add(first)
    changed = Call(**{f: getattr(second, f) for f in Call.__slots__} | {"tools": '[{"name": "new"}]'})
    assert placer.add(changed).join_cause == "edited"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "function", "arguments", "name", "reasoning", "text"]), inner
    ),
    max_leaves=12,
)  # fmt: skip
MESSAGES = st.one_of(st.lists(JSON, max_size=4).map(json.dumps), st.text(), st.just('[{"content": "\\ud800"}]'))


@given(st.lists(st.tuples(MESSAGES, st.lists(st.integers(0, 3), max_size=4)), max_size=6))
def test_any_messages_are_placed(prompts: list[tuple[str, list[int]]]) -> None:
    placer = Placer()
    for seq, (messages, ids) in enumerate(prompts):
        placer.add(
            Call(call_id=f"c{seq}", run_id="r", session_id="s", seq=seq, messages=messages,
                 response='{"role": "assistant", "content": 1, "tool_calls": 7}',
                 prompt_ids=np.array(ids, np.int32), output_ids=np.array([1], np.int32))
        )  # fmt: skip


def long_session(count: int, agents: int = 1) -> list[Call]:
    """``count`` calls that each go on from the last of their agent, with prompts of about one length."""
    ids = [np.arange(3000, dtype=np.int32) + agent for agent in range(agents)]
    histories: list[list[dict[str, Any]]] = [[{"role": "system", "content": f"agent {a}"}, USER] for a in range(agents)]
    made: list[Call] = []
    for seq in range(count):
        agent = seq % agents
        reply = {"role": "assistant", "content": f"answer {seq}"}
        output = np.array([9000 + seq, 5], np.int32)
        made.append(
            Call(call_id=f"c{seq:04d}", run_id="r", session_id="s", seq=seq, messages=json.dumps(histories[agent]),
                 response=json.dumps(reply), prompt_ids=ids[agent], output_ids=output)
        )  # fmt: skip
        ids[agent] = np.concatenate((ids[agent], output, np.array([7], np.int32)))
        histories[agent] = [*histories[agent], reply, {"role": "user", "content": f"more {seq}"}]
    return made


def work(run: Callable[[], object]) -> int:
    """How many calls the interpreter makes, of Python's own functions too: the same on every machine."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("agents", [1, 6])
def test_the_tree_takes_time_linear_in_the_calls(agents: int) -> None:
    short, long = long_session(100, agents), long_session(400, agents)
    assert [node.parent for node in build(long).nodes] == [None] * agents + list(range(400 - agents))
    assert work(lambda: build(long)) < 4.5 * work(lambda: build(short))


@pytest.mark.parametrize("agents", [1, 6])
def test_deltas_take_time_linear_in_the_calls(agents: int) -> None:
    def encode(calls: list[Call]) -> None:
        chain = Chain()
        for call in calls:
            chain.add(call)

    assert work(lambda: encode(long_session(400, agents))) < 4.5 * work(lambda: encode(long_session(100, agents)))
