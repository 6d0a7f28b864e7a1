"""Random conversations over the messages wire: what goes out as an answer comes back as the same message, and each
prompt begins with the one before it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from forge.proxy.dialects.messages_request import translate
from tests.faults.soak import examples, figures
from tests.proxy.test_messages_answer import call_delta, final, read
from tests.proxy.wire import answer, chunk, run, send, stream, usage_chunk

Json = dict[str, Any]
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
TEXT = st.text(min_size=1, max_size=12)
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@dataclass(frozen=True)
class Said:
    """What the policy writes in one turn."""

    reasoning: str
    text: str
    arguments: list[Json]


@dataclass(frozen=True)
class Heard:
    """What the harness adds before the next one."""

    text: str
    images: int
    note: str
    """A system entry, in front of the user's or behind it."""
    note_first: bool
    image_in_result: bool
    split: bool
    """Each result in an entry of its own."""
    seed: int


SAID = st.builds(
    Said, st.just("") | TEXT, st.just("") | TEXT, st.lists(st.dictionaries(TEXT, VALUE, max_size=3), max_size=3)
)
HEARD = st.builds(
    Heard,
    st.just("") | TEXT,
    st.integers(0, 2),
    st.just("") | TEXT,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)


def engine(said: Said, cut: int) -> bytes:
    """The policy's turn as an engine streams it, arguments in pieces."""
    deltas = [chunk({"role": "assistant", "content": ""})]
    if said.reasoning:
        deltas.append(chunk({"reasoning": said.reasoning}))
    if said.text:
        deltas.append(chunk({"content": said.text}))
    for n, arguments in enumerate(said.arguments):
        written = json.dumps(arguments, ensure_ascii=False)
        deltas.append(chunk(call_delta(n, "tool", call_id=f"c{cut}_{n}")))
        deltas += [chunk(call_delta(n, arguments=written[at : at + 5])) for at in range(0, len(written), 5)]
    return stream(*deltas, chunk({}, "tool_calls" if said.arguments else "stop"), usage_chunk())


def expected(said: Said, message: Json) -> Json:
    """The policy's turn as it must stand in the next prompt."""
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    calls = [
        {
            "id": tool_id,
            "type": "function",
            "function": {"name": "tool", "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for tool_id, arguments in zip(ids, said.arguments, strict=True)
    ]
    made: Json = {"role": "assistant", "content": said.text or (None if calls else "")}
    return (
        made
        | ({"reasoning": said.reasoning, "reasoning_content": said.reasoning} if said.reasoning else {})
        | ({"tool_calls": calls} if calls else {})
    )


def entries(heard: Heard, message: Json) -> list[Json]:
    ids = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    results = [
        {
            "type": "tool_result",
            "tool_use_id": tool_id,
            "content": [{"type": "text", "text": f"of {tool_id}"}, *([IMAGE] if heard.image_in_result else [])],
        }
        for tool_id in ids
    ]
    random.Random(heard.seed).shuffle(results)
    rest = [*([{"type": "text", "text": heard.text}] if heard.text else []), *[IMAGE] * heard.images]
    if heard.split or not results:
        found = [{"role": "user", "content": [result]} for result in results]
        found += [{"role": "user", "content": rest}] if rest or not results else []
    else:
        found = [{"role": "user", "content": [*results, *rest]}]
    note = [{"role": "system", "content": heard.note}] if heard.note else []
    return [*note, *found] if heard.note_first else [*found, *note]


def prompt(history: list[Json]) -> list[Json]:
    """Of a client that writes JSON as JavaScript does."""
    body = json.dumps({"model": "m", "messages": history}, separators=(",", ":"), ensure_ascii=False)
    found: list[Json] = json.loads(translate(body.encode()).members["messages"])
    return found


@figures(50, 1250, 50_000)
def test_each_prompt_begins_with_the_last_one_and_its_answer(number: int) -> None:
    """Field cases 109 to 112: thinking, calls and results survive both ways."""
    examples(number, st.lists(st.tuples(SAID, HEARD), min_size=1, max_size=4), _converse)


def _converse(turns: list[tuple[Said, Heard]]) -> None:
    history: list[Json] = [{"role": "user", "content": "hi"}]
    before = prompt(history)
    for place, (said, heard) in enumerate(turns):
        outgoing = send("messages", {"messages": history, "stream": True})
        message = final(read(run(answer("messages", outgoing), engine(said, place))))
        history += [{"role": "assistant", "content": message["content"]}, *entries(heard, message)]
        after = prompt(history)
        assert after[: len(before)] == before
        assert after[len(before)] == expected(said, message)
        results = [m for m in after[len(before) :] if m["role"] == "tool"]
        called = expected(said, message).get("tool_calls", [])
        assert [m["tool_call_id"] for m in results] == [call["id"] for call in called]
        before = after
