"""The typed edits of a chat history, and that nothing else is touched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.dialects.chat_history import fit
from forge.proxy.engines import ENGINES
from forge.proxy.engines.base import Wire
from forge.proxy.sessions.turns import split
from tests.proxy.wire import USER, send

STRICT = Wire(developer_is_system=True, tool_text_only=True, reasoning=True)
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT = {"type": "text", "text": "seen"}


def fitted(messages: Any, wire: Wire = STRICT) -> tuple[Any, list[dict[str, Any]]]:
    done = fit(split(json.dumps(messages).encode()), wire)
    assert done is not None
    return json.loads(done[0]), done[1]


def test_a_developer_is_a_system_where_templates_know_no_other() -> None:
    """Field cases 79, 82: both forms are recorded, as asked and as sent."""
    messages = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        USER,
        {"role": "developer", "content": [TEXT]},
    ]
    sent, edits = fitted(messages)
    assert [m["role"] for m in sent] == ["system", "user", "system"]
    assert [{k: v for k, v in m.items() if k != "role"} for m in sent] == [
        {k: v for k, v in m.items() if k != "role"} for m in messages
    ]
    assert [(e["edit"], e["message"], e["asked"], e["sent"]) for e in edits] == [
        ("role", 0, "developer", "system"),
        ("role", 2, "developer", "system"),
    ]


def test_images_of_tool_results_follow_the_last_of_them() -> None:
    """Field cases 86, 88: an engine without a place for them is not sent them there, and the edit is recorded."""
    messages = [
        USER,
        {"role": "tool", "tool_call_id": "a", "content": [TEXT, IMAGE]},
        {"role": "tool", "tool_call_id": "b", "content": [IMAGE]},
        {"role": "tool", "tool_call_id": "c", "content": "plain"},
        {"role": "assistant", "content": "ok"},
    ]
    sent, edits = fitted(messages)
    assert [m["role"] for m in sent] == ["user", "tool", "tool", "tool", "user", "assistant"]
    assert [m["content"] for m in sent[1:5]] == [[TEXT], "", "plain", [IMAGE, IMAGE]]
    assert [(e["edit"], e["message"], e["count"]) for e in edits] == [("moved_images", 1, 1), ("moved_images", 2, 1)]


def test_results_that_end_the_history_are_followed_too() -> None:
    sent, _ = fitted([USER, {"role": "tool", "tool_call_id": "a", "content": [IMAGE]}])
    assert sent[-1] == {"role": "user", "content": [IMAGE]}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "user", "content": 'I am a "developer" with an "image_url"'}],
        [{"role": "user", "content": [TEXT, IMAGE]}],
        [{"role": "tool", "tool_call_id": "a", "content": '"image_url"'}],
    ],
)
def test_what_needs_no_edit_goes_as_it_came(messages: Any) -> None:
    assert fit(split(json.dumps(messages).encode()), STRICT) is None
    body = json.dumps({"model": "policy", "messages": messages, "temperature": 1}).encode()
    assert send("chat", body).body.startswith(body[:-1])


def test_a_thought_that_comes_back_under_its_old_name_is_seen() -> None:
    """Field cases 90, 91: vLLM 0.32 reads a history's thoughts from ``reasoning`` alone."""
    messages = [
        USER,
        {"role": "assistant", "content": "4", "reasoning_content": "2+2"},
        {"role": "assistant", "content": "4", "reasoning_content": "x", "reasoning": "own"},
        {"role": "user", "content": "and?", "reasoning_content": "no thought"},
        {"role": "assistant", "content": "", "reasoning_content": ""},
    ]
    sent, edits = fitted(messages)
    assert [m.get("reasoning") for m in sent] == [None, "2+2", "own", None, None]
    assert sent[1]["reasoning_content"] == "2+2"
    assert [(e["edit"], e["message"]) for e in edits] == [("reasoning_name", 1)]


@pytest.mark.parametrize("messages", [b'["developer"', b'"developer"', b'[{"role":"developer"},3]', b""])
def test_what_cannot_be_read_is_the_engines_to_refuse(messages: bytes) -> None:
    assert fit(split(messages), STRICT) is None


def test_an_engine_that_knows_all_roles_gets_them() -> None:
    messages = [{"role": "developer", "content": "x"}, {"role": "tool", "tool_call_id": "a", "content": [IMAGE]}]
    assert fit(split(json.dumps(messages).encode()), ENGINES["openai"].wire) is None


def test_the_edit_stands_in_the_record_and_the_request() -> None:
    outgoing = send("chat", {"model": "m", "messages": [{"role": "developer", "content": "x"}, USER]})
    assert [m["role"] for m in json.loads(outgoing.body)["messages"]] == ["system", "user"]
    assert [edit["edit"] for edit in json.loads(outgoing.edits or "[]")] == ["role"]


_text = st.text(max_size=8)
_parts = st.lists(st.one_of(st.just(IMAGE), _text.map(lambda t: {"type": "text", "text": t})), max_size=3)
_content = st.one_of(st.none(), _text, _parts)
_message = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    _content,
)


@given(st.lists(_message, max_size=6))
def test_nothing_is_lost_and_nothing_else_changes(messages: list[dict[str, Any]]) -> None:
    done = fit(split(json.dumps(messages).encode()), STRICT)
    sent = messages if done is None else json.loads(done[0])

    def parts(history: list[dict[str, Any]]) -> list[str]:
        found = [p for m in history for p in (m["content"] if isinstance(m["content"], list) else [m["content"]])]
        return sorted(json.dumps(p) for p in found if p not in ("", None))

    assert parts(sent) == parts(messages)
    assert all(m["role"] != "developer" for m in sent)
    assert not any(IMAGE in m["content"] for m in sent if m["role"] == "tool" and isinstance(m["content"], list))
    again = fit(split(json.dumps(sent).encode()), STRICT)
    assert again is None
