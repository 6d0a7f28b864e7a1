"""What is known of a history is never told from what is read anew, whatever a session sends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.dialects.base import BadRequest, Overrides
from forge.proxy.dialects.chat import Chat
from forge.proxy.engines import ENGINES
from forge.proxy.sessions.histories import Histories
from forge.proxy.sessions.history import fingerprint
from forge.proxy.sessions.turns import Asked, Known, read
from forge.proxy.splice import UNREADABLE

TEXTS = st.sampled_from(["a", "b", '"messages":[', "],", "}", "\\", "data", "é", '","developer', "x" * 40])
MESSAGES = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXTS)
TURNS = st.lists(MESSAGES | TEXTS | st.integers(0, 12), max_size=6)
SPACES = st.sampled_from([(",", ":"), (", ", ": ")])


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """Requests of one session: each a change of the one before."""
    turns: list[Any] = draw(TURNS)
    around: dict[str, Any] = {"model": "m"}
    made: list[bytes] = []
    for _ in range(draw(st.integers(2, 6))):
        change = draw(st.sampled_from(["more", "less", "last", "other", "around", "same"]))
        if change == "more":
            turns = turns + draw(TURNS)
        elif change == "less":
            turns = turns[: draw(st.integers(0, len(turns)))]
        elif change == "last" and turns:
            turns = [*turns[:-1], draw(MESSAGES)]
        elif change == "other":
            turns = draw(TURNS)
        elif change == "around":
            around = around | {draw(st.sampled_from(["n", "tools", "metadata", "messages2"])): draw(TURNS)}
        name = draw(st.sampled_from(["messages", "messages", "messages", "input"]))
        value = json.dumps(turns, separators=draw(SPACES)).encode()
        parts = [json.dumps({k: v})[1:-1].encode() for k, v in around.items()]
        at = draw(st.integers(0, len(parts)))
        parts.insert(at, b'"' + name.encode() + b'":' + value)
        text = b"{" + b",".join(parts) + b"}"
        edit = draw(st.sampled_from(["", "", "", "comma", "twice", "escaped", "cut", "blank"]))
        if edit == "comma":
            text = text.replace(b"}]", b"},]", 1)
        elif edit == "twice":
            text = text[:-1] + b',"messages":[{"role":"user","content":"b"}]}'
        elif edit == "escaped":
            text = text[:-1] + b',"\\u006dessages":[{"role":"user","content":"b"}]}'
        elif edit == "cut":
            text = text[: draw(st.integers(0, len(text)))]
        elif edit == "blank":
            text = text.replace(b"}]", b"} ]", 1).replace(b"[{", b"[ {", 1)
        made.append(text)
    return made


def seen(asked: Asked) -> dict[str, Any]:
    """All that anyone makes of it."""
    found: dict[str, Any] = {
        "members": {name: bytes(value) for name, value in asked.members.items()},
        "name": asked.around.name,
        "turns": [turn.text for turn in asked.turns],
        "value": asked.body[asked.start : asked.end],
        "print": fingerprint(asked),
        "signs": asked.signs,
    }
    for overrides in (Overrides(), Overrides(model="served", sampling={"temperature": 1.0})):
        try:
            made = Chat().request(asked, engine=ENGINES["vllm"], overrides=overrides, call_id="c")
        except BadRequest as refused:
            found[repr(overrides)] = str(refused)
            continue
        found[repr(overrides)] = made
        if made.shared is not None:
            start, stop, _ = made.shared
            before, after = made.shared.rest(made.pieces)
            assert before + asked.body[start:stop] + after == made.body
    return found


@given(bodies())
def test_what_is_known_reads_as_what_is_read_anew(made: list[bytes]) -> None:
    histories = Histories()
    for body in made:
        try:
            fresh = read(body, Known())
        except UNREADABLE:
            with pytest.raises(UNREADABLE):
                histories.read("s", body)
            continue
        assert seen(histories.read("s", body)) == seen(fresh)


def chat(*texts: str) -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


def test_turns_that_came_before_are_the_same_ones() -> None:
    histories = Histories()
    first = histories.read("s", chat("a", "b"))
    further = histories.read("s", chat("a", "b", "c", "d"))
    assert further.turns[:2] == first.turns[:2]
    assert further.around is first.around
    replaced = histories.read("s", chat("a", "b", "c", "e"))
    assert replaced.turns[:3] == further.turns[:3]
    assert histories.read("other", chat("a", "b")).turns[0] is not first.turns[0]


def test_agents_that_take_turns_keep_their_histories() -> None:
    histories = Histories()
    long = [str(number) for number in range(20)]
    mine = histories.read("s", chat("mine", *long))
    other = histories.read("s", chat("other", *long))
    assert histories.read("s", chat("mine", *long, "more")).turns[:21] == mine.turns
    assert histories.read("s", chat("other", *long, "more")).turns[:21] == other.turns


def test_what_is_kept_has_a_limit() -> None:
    histories = Histories(limit=2500)
    first = histories.read("a", chat("x" * 1000))
    histories.read("b", chat("x" * 1000))
    assert histories.read("a", chat("x" * 1000, "y")).turns[0] is first.turns[0]
    histories.read("c", chat("x" * 1000))
    assert histories.read("a", chat("x" * 1000, "z")).turns[0] is first.turns[0]
    assert len(histories) == 2


def test_requests_of_one_session_that_are_read_before_any_is_gone_on_with() -> None:
    histories = Histories()
    one, two = (histories.read("s", chat("a", "b", end)) for end in "cd")
    assert fingerprint(one) == fingerprint(read(one.body, Known()))
    assert fingerprint(two) == fingerprint(read(two.body, Known()))
