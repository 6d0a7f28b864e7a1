"""``--history keep-reasoning``: dropped thinking is given back, found where it belongs, and recorded as it was sent.

Field cases 90, 91, 92, 109, 110, 111, 156, 157, 158: what engines and templates want back, and what harnesses keep.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy import splice
from forge.proxy.dialects.base import Outgoing, Overrides
from forge.proxy.dialects.chat import Chat
from forge.proxy.engines import ENGINES
from forge.proxy.engines.thinking import KEEP_THINKING
from forge.proxy.sessions.reasoning import ENTRY, Reasoning, keep
from forge.proxy.sessions.spec import HistoryMode
from forge.storage.records import Session
from forge.storage.samples import derive
from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import Serving, calls, serving

Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "be good"}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def reply(text: str | None = None, *, call: str | None = None, id: str = "call_1", **members: Any) -> Json:
    message: Json = {"role": "assistant", "content": text} | members
    if call is not None:
        message["tool_calls"] = [{"id": id, "type": "function", "function": {"name": "ls", "arguments": call}}]
    return message


def ready(messages: list[Json], **members: Any) -> Outgoing:
    body = json.dumps({"model": "m", "messages": messages} | members).encode()
    return Chat().request(body, engine=ENGINES["vllm"], overrides=Overrides(), call_id="c")


def given_back(memory: Reasoning, messages: list[Json]) -> dict[int, str]:
    """Place of a message to the thought that it gets."""
    kept = keep(ready(messages), memory, "vllm").outgoing
    sent = json.loads(kept.body)["messages"]
    return {
        at: m["reasoning_content"]
        for at, m in enumerate(sent)
        if m.get("reasoning_content") != messages[at].get("reasoning_content")
    }


def remember(memory: Reasoning, messages: list[Json], answer: Json) -> None:
    place = keep(ready(messages), memory, "vllm").place
    assert place is not None
    memory.note(place, answer)


def test_a_dropped_thought_comes_back_to_its_turn() -> None:
    """Field cases 91, 92: by the history that led to it, whatever was done to ids, arguments and blanks."""
    memory, first = Reasoning(), [SYSTEM, user("go")]
    remember(memory, first, reply(call='{"a": 1, "b": 2}', id="call_1", reasoning="first, look"))
    result = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    second = [*first, reply(call='{"a": 1, "b": 2}', reasoning_content="first, look"), result]
    remember(memory, second, reply("done ", reasoning_content="then say so"))
    history = [
        *first,
        reply("", call='{"b":2,"a":1}', id="call1"),
        result | {"tool_call_id": "call1"},
        reply("done"),
        user("on"),
    ]
    assert given_back(memory, history) == {2: "first, look", 4: "then say so"}


def test_what_a_harness_kept_is_left_alone() -> None:
    """Field cases 109, 110: its own thinking is never replaced, in whichever member or text it stands."""
    memory = Reasoning()
    remember(memory, [user("go")], reply("ok", reasoning="hm"))
    for kept in (
        reply("ok", reasoning_content="mine"),
        reply("ok", reasoning="mine"),
        reply("<think>mine</think>ok"),
    ):
        assert given_back(memory, [user("go"), kept, user("on")]) == {}


def test_equal_words_from_other_thoughts_are_told_apart_by_their_place() -> None:
    memory = Reasoning()
    remember(memory, [user("a")], reply("ok", reasoning="of a"))
    remember(memory, [user("b")], reply("ok", reasoning="of b"))
    assert given_back(memory, [user("a"), reply("ok"), user("x")]) == {1: "of a"}
    assert given_back(memory, [user("b"), reply("ok"), user("x")]) == {1: "of b"}
    assert given_back(memory, [user("compacted"), reply("ok"), user("x")]) == {}, "which of both nobody can tell"


def test_a_reply_without_a_thought_gets_none_of_another_turns() -> None:
    """It said what another reply said, or called a tool by an id that is counted anew: its own thought was none."""
    memory = Reasoning()
    first, second = [SYSTEM, user("go")], [SYSTEM, user("so far: nothing")]
    called = reply(call="{}", id="functions.ls:0")
    result = {"role": "tool", "tool_call_id": "functions.ls:0", "content": "x"}
    remember(memory, first, called | {"reasoning": "look"})
    remember(memory, [*first, called, result], reply("ok", reasoning="say so"))
    remember(memory, second, called)
    remember(memory, [*second, called, result], reply("ok"))
    assert given_back(memory, [*second, called, result, reply("ok"), user("on")]) == {}
    assert given_back(memory, [*first, called, result, reply("ok"), user("on")]) == {2: "look", 4: "say so"}
    assert given_back(memory, [user("compacted"), called, result, reply("ok"), user("on")]) == {}, "of which, who knows"


def test_after_a_compaction_ids_and_words_find_it() -> None:
    memory = Reasoning()
    remember(memory, [user("a")], reply(call="{}", id="call_a", reasoning="of a"))
    remember(memory, [user("b")], reply("said once", reasoning="of b"))
    history = [user("so far ..."), reply("repaired", call='{"x": 1}', id="call_a"), reply("said once")]
    assert given_back(memory, history) == {1: "of a", 2: "of b"}


def test_thinking_in_the_text_is_thinking() -> None:
    """An engine without a reasoning parser: the harness cuts it out of the text."""
    memory = Reasoning()
    remember(memory, [user("go")], reply("<think>\nhm\n</think>\n\nyes"))
    assert given_back(memory, [user("go"), reply("yes"), user("x")]) == {1: "hm"}


def test_memory_is_bounded() -> None:
    memory = Reasoning(limit=9 * (len("thought   0") + ENTRY) + 1)
    for n in range(50):
        remember(memory, [user(f"q{n}")], reply(f"a{n}", reasoning=f"thought {n:3}"))
    assert given_back(memory, [user("q0"), reply("a0"), user("x")]) == {}
    assert given_back(memory, [user("q49"), reply("a49"), user("x")]) == {1: "thought  49"}
    kept = [n for n in range(50) if given_back(memory, [user(f"q{n}"), reply(f"a{n}"), user("x")])]
    assert kept == list(range(41, 50))


def test_the_edit_is_recorded_and_nothing_else_is_touched() -> None:
    """Field case 90: both members that engines read; 157: the template is asked by every name it may know."""
    memory = Reasoning()
    remember(memory, [user("go")], reply("ok", reasoning="hm"))
    outgoing = ready(
        [user("go"), reply("ok", reasoning_content=None), user("on")], top_k=7, chat_template_kwargs={"x": 1}
    )
    kept = keep(outgoing, memory, "vllm").outgoing
    before, after = splice.members(outgoing.body), splice.members(kept.body)
    assert {
        name: bytes(value) for name, value in after.items() if name not in ("messages", "chat_template_kwargs")
    } == {name: bytes(value) for name, value in before.items() if name not in ("messages", "chat_template_kwargs")}
    message = json.loads(bytes(after["messages"]))[1]
    assert message == {"role": "assistant", "content": "ok", "reasoning_content": "hm", "reasoning": "hm"}
    assert json.loads(bytes(after["chat_template_kwargs"])) == {"x": 1, **KEEP_THINKING}
    assert json.loads(kept.edits or "")[-1] == {"edit": "reasoning", "messages": [1], "template": dict(KEEP_THINKING)}
    assert kept.edited


def test_a_foreign_service_gets_no_template_variables() -> None:
    memory = Reasoning()
    remember(memory, [user("go")], reply("ok", reasoning="hm"))
    kept = keep(ready([user("go"), reply("ok"), user("on")]), memory, "openai").outgoing
    assert "chat_template_kwargs" not in json.loads(kept.body)
    assert json.loads(kept.edits or "")[-1] == {"edit": "reasoning", "messages": [1]}


@pytest.mark.parametrize("messages", [[user("go")], [SYSTEM, user("go"), {"role": "tool", "content": "x"}]])
def test_a_request_without_a_reply_is_sent_as_it_is(messages: list[Json]) -> None:
    outgoing = ready(messages)
    assert keep(outgoing, Reasoning(), "vllm").outgoing is outgoing


@given(
    st.sampled_from(
        [
            b"{}",
            b'{"messages": 3}',
            b'{"messages": [1, "x", null, {"role": []}]}',
            b"nonsense",
            b'{"messages": [{"role": "assistant", "tool_calls": 4}]}',
        ]
    )
)
def test_what_cannot_be_read_is_left_to_the_engine(body: bytes) -> None:
    outgoing = Outgoing((body,), False, False, ENGINES["vllm"].ask({}, stream=False), None, None, None, None)
    assert keep(outgoing, Reasoning(), "openai").outgoing is outgoing


# Through the proxy, on a template that strips old thinking.


class Harness:
    """A chat harness: keeps its history, with its own way of echoing a reply."""

    def __init__(self, s: Serving, key: str, echo: Any) -> None:
        self.s, self.key, self.echo = s, key, echo
        self.messages: list[Json] = [SYSTEM]

    async def say(self, text: str) -> None:
        """A user's turn, with tool calls until the model stops."""
        self.messages.append(user(text))
        while True:
            async with self.s.chat(
                self.messages, key=self.key, tools=[{"type": "function", "function": {"name": "ls"}}]
            ) as answer:
                assert answer.status == 200, await answer.text()
                message = (await answer.json())["choices"][0]["message"]
            self.messages.append(self.echo({name: value for name, value in message.items() if value is not None}))
            if not message.get("tool_calls"):
                return
            self.messages += [{"role": "tool", "tool_call_id": c["id"], "content": "x"} for c in message["tool_calls"]]


def like_pi(message: Json) -> Json:
    """Echoes the thinking as ``reasoning_content``."""
    thinks = message.pop("reasoning", None)
    return message if thinks is None else message | {"reasoning_content": thinks}


def like_hermes(message: Json) -> Json:
    """Drops it, and strips the text."""
    message.pop("reasoning", None)
    return message | {"content": (message.get("content") or "").strip()}


def script(engine: ScriptedEngine, turns: int) -> None:
    for n in range(turns):
        engine.script(
            Turn("", reasoning=f"look {n}", tool_calls=[("ls", '{"n": 1}')]),
            Turn("", reasoning=f"look again {n}", tool_calls=[("ls", '{"n": 1}')]),
            Turn(f"done {n}", reasoning=f"say so {n}"),
        )


async def rows(tmp_path: Path, mode: HistoryMode, echo: Any, turns: int = 4) -> int:
    """Training rows of a session of ``turns`` user turns with three calls each."""
    async with serving(tmp_path, ScriptedEngine(like_qwen=True), history=mode) as s:
        script(s.engine, turns)
        ticket = await s.control.open_session()
        harness = Harness(s, ticket.api_key, echo)
        for n in range(turns):
            await harness.say(f"task {n}")
        found = calls(s.data)
        assert all(row.trainable for row in found)
        if mode is HistoryMode.KEEP_REASONING:
            for row, served in zip(found, s.engine.served, strict=True):
                assert json.loads(row.messages) == served.json["messages"], "what was sent is what is recorded"
        return len(derive(Session(session_id=ticket.session_id, run_id="run", reward=1.0), found).samples)


@pytest.mark.parametrize(("echo", "as_sent"), [(like_pi, 4), (like_hermes, 12)], ids=["pi", "hermes"])
async def test_rows_per_session_on_a_template_that_strips_thinking(tmp_path: Path, echo: Any, as_sent: int) -> None:
    """Field cases 156, 169: rows per session as-sent (a break per user turn, or per call), and one with the option."""
    assert await rows(tmp_path / "sent", HistoryMode.AS_SENT, echo) == as_sent
    assert await rows(tmp_path / "kept", HistoryMode.KEEP_REASONING, echo) == 1


def like_codex(items: list[Json]) -> list[Json]:
    return items


def without_reasoning(items: list[Json]) -> list[Json]:
    return [item for item in items if item["type"] != "reasoning"]


async def responses_rows(tmp_path: Path, mode: HistoryMode, echo: Any, turns: int = 3) -> int:
    """As ``rows``, over the responses wire; the session says the mode, the proxy another."""
    other = next(one for one in HistoryMode if one is not mode)
    async with serving(tmp_path, ScriptedEngine(like_qwen=True), history=other) as s:
        script(s.engine, turns)
        ticket = await s.control.open_session(history=mode.value)
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        items: list[Json] = []
        for n in range(turns):
            items.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"task {n}"}]})
            acts = True
            while acts:
                tools = [{"type": "function", "name": "ls", "parameters": {}}]
                body = {"model": "m", "input": items, "tools": tools, "include": ["reasoning.encrypted_content"]}
                async with s.http.post(ticket.base_url + "/responses", json=body, headers=headers) as answer:
                    assert answer.status == 200, await answer.text()
                    output = (await answer.json())["output"]
                items += echo(output)
                acts = any(item["type"] == "function_call" for item in output)
                for item in output:
                    if item["type"] == "function_call":
                        items.append({"type": "function_call_output", "call_id": item["call_id"], "output": "x"})
        found = calls(s.data)
        done = await s.control.close_session(ticket.session_id, reward=1.0)
        assert done.session.history == mode.value
        return len(derive(Session(session_id=ticket.session_id, run_id="run", reward=1.0), found).samples)


@pytest.mark.parametrize(("echo", "as_sent"), [(like_codex, 3), (without_reasoning, 9)], ids=["codex", "dropping"])
async def test_rows_per_session_over_responses(tmp_path: Path, echo: Any, as_sent: int) -> None:
    """Field cases 111, 156: reasoning items that come back, and those that do not; the session's mode wins."""
    assert await responses_rows(tmp_path / "sent", HistoryMode.AS_SENT, echo) == as_sent
    assert await responses_rows(tmp_path / "kept", HistoryMode.KEEP_REASONING, echo) == 1


async def test_after_a_restart_the_memory_begins_empty(tmp_path: Path) -> None:
    """The session keeps its mode; what was thought before goes out as the harness sends it."""
    talk = [user("a"), reply("one"), user("b"), reply("two"), user("c")]
    async with serving(tmp_path) as s:
        s.engine.script(Turn("one", reasoning="hm 1"))
        ticket = await s.control.open_session(history="keep-reasoning")
        async with s.chat(talk[:1], key=ticket.api_key) as answer:
            await answer.read()
    async with serving(tmp_path) as s:
        s.engine.script(Turn("two", reasoning="hm 2"))
        for size in (3, 5):
            async with s.chat(talk[:size], key=ticket.api_key) as answer:
                assert answer.status == 200
                await answer.read()
        assert [json.loads(row.edits or "[]")[-1]["messages"] for row in calls(s.data)[1:]] == [[], [3]]
