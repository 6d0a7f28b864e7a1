from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.dialects.base import BadRequest, Outgoing, Overrides
from forge.proxy.dialects.messages_blocks import sign
from forge.proxy.dialects.messages_request import translate
from forge.proxy.dialects.spacing import spaced
from tests.proxy.wire import send

HI = {"role": "user", "content": "hi"}
BASH = {"name": "bash", "description": "runs", "input_schema": {"type": "object", "properties": {"a": {}}}}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "aGk="}
IMAGE = {"type": "image", "source": PIXEL}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}


def ask(*entries: Any, **members: Any) -> Outgoing:
    return send("messages", {"model": "m", "max_tokens": 100, "messages": list(entries) or [HI]} | members)


def chat(*entries: Any, **members: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(ask(*entries, **members).body)
    return decoded


def messages(*entries: Any, **members: Any) -> list[dict[str, Any]]:
    """As translated, before they are fitted to an engine."""
    body = json.dumps({"messages": list(entries) or [HI]} | members).encode()
    found: list[dict[str, Any]] = json.loads(translate(body).members["messages"])
    return found


def edits(*entries: Any, **members: Any) -> list[dict[str, Any]]:
    return json.loads(ask(*entries, **members).edits or "[]")  # type: ignore[no-any-return]


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value} | more


def thinking(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": "anything"}


def use(tool_id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": tool_id, "name": "bash", "input": arguments}


def result(tool_id: str, content: Any = "done", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": tool_id, "content": content} | more


def call(tool_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": tool_id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


def tool(tool_id: str, content: str = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": tool_id, "content": content}


def test_the_smallest_request() -> None:
    outgoing = ask()
    assert json.loads(outgoing.body) == {
        "model": "m",
        "messages": [HI],
        "max_tokens": 100,
        "return_token_ids": True,
        "logprobs": True,
    }
    assert outgoing.edited
    assert not outgoing.stream
    assert outgoing.model_requested == "m"
    assert outgoing.edits is None


# System


@pytest.mark.parametrize(
    ("system", "sent"),
    [
        ("Be brief", "Be brief"),
        ([text("Be brief", cache_control={"type": "ephemeral"})], "Be brief"),
        (
            [text("x-anthropic-billing-header: v;"), text("You are"), text("")],
            "x-anthropic-billing-header: v;\nYou are",
        ),
    ],
)
def test_system_is_one_message(system: Any, sent: str) -> None:
    """Field case 105: what a harness puts in front stays as it is; telling nonces apart is not this one's work."""
    assert messages(system=system) == [{"role": "system", "content": sent}, HI]


@pytest.mark.parametrize("system", [None, "", [], [text("")]])
def test_no_system(system: Any) -> None:
    assert messages(system=system) == [HI]


def test_system_in_mid_conversation_keeps_its_place_and_an_empty_one_says_nothing() -> None:
    note = {"role": "system", "content": [text("note")]}
    empty = {"role": "system", "content": [], "output_config": {"effort": "low"}}
    assert messages(HI, note, empty, said(text("a")), {"role": "system", "content": "more"}, HI) == [
        HI,
        {"role": "system", "content": "note"},
        {"role": "assistant", "content": "a"},
        {"role": "system", "content": "more"},
        HI,
    ]


def test_system_does_not_part_calls_from_their_results() -> None:
    note = {"role": "system", "content": "note"}
    sent = messages(HI, said(use("a"), use("b")), note, user(result("a"), result("b")), note, said(text("ok")), HI)
    assert [m["role"] for m in sent] == ["user", "assistant", "tool", "tool", "system", "system", "assistant", "user"]


# What is said


@pytest.mark.parametrize("content", ["a\nb", [text("a"), text("b", cache_control={})], [text("a\nb")]])
def test_a_list_and_a_string_are_the_same(content: Any) -> None:
    assert messages({"role": "user", "content": content}) == [{"role": "user", "content": "a\nb"}]
    assistant = {"role": "assistant", "content": content}
    assert messages(HI, assistant, HI)[1]["content"] == "a\nb".replace("\n", "" if len(content) == 2 else "\n")


@pytest.mark.parametrize("content", ["", [], None, [text("")]])
def test_nothing_said_is_an_empty_message(content: Any) -> None:
    entry = {"role": "user", "content": content}
    assert messages(entry, said(*(content or []) if isinstance(content, list) else ()), HI) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        HI,
    ]


def test_images_keep_their_place() -> None:
    remote = {"type": "image", "source": {"type": "url", "url": "https://a/b.png"}}
    assert messages(user(text("look"), IMAGE, remote)) == [
        {
            "role": "user",
            "content": [text("look"), IMAGE_PART, {"type": "image_url", "image_url": {"url": "https://a/b.png"}}],
        }
    ]


def test_documents_are_shown_where_they_are_text() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}, "title": "T"}
    blocks = {"type": "document", "source": {"type": "content", "content": [text("one"), text("two")]}}
    found = {"type": "search_result", "source": "s", "title": "R", "content": [text("hit")]}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}
    stored = {"type": "image", "source": {"type": "file", "file_id": "f"}}
    assert messages(user(plain, blocks, found, pdf, stored)) == [
        {"role": "user", "content": "T\nwords\none\ntwo\nR\nhit"}
    ]
    assert edits(user(plain, pdf, stored)) == [
        {"edit": "dropped_block", "type": "document", "source": "application/pdf"},
        {"edit": "dropped_block", "type": "image", "source": "file"},
    ]


# Answers that come back


def test_one_answer_is_one_message_again() -> None:
    one = said(thinking("hm"), text("I run"), use("a", cmd="ls"), use("b", cmd="pwd"))
    split = [said(thinking("hm")), said(text("I run")), said(use("a", cmd="ls")), said(use("b", cmd="pwd"))]
    results = user(result("a"), result("b"))
    assert messages(HI, one, results) == messages(HI, *split, results)
    assert messages(HI, one, results)[1] == {
        "role": "assistant",
        "content": "I run",
        "reasoning": "hm",
        "reasoning_content": "hm",
        "tool_calls": [call("a", '{"cmd": "ls"}'), call("b", '{"cmd": "pwd"}')],
    }


def test_two_answers_are_two_messages() -> None:
    assert messages(said(text("a")), said(text("b")), said(thinking("c"), text("d")), HI)[:3] == [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "d", "reasoning": "c", "reasoning_content": "c"},
    ]


def test_a_call_without_text_has_null_content_and_text_after_a_call_joins_it() -> None:
    assert messages(HI, said(use("a")), user(result("a")))[1]["content"] is None
    assert messages(HI, said(text("x"), use("a"), text("y")), user(result("a")))[1]["content"] == "xy"


@pytest.mark.parametrize("signature", [sign("hm"), "EqQBCgIYAhIM...", "", None])
def test_thinking_comes_back_whoever_signed_it(signature: str | None) -> None:
    """Field cases 109 and 111: no signature is checked, and no thinking is refused."""
    block = {"type": "thinking", "thinking": "hm", "signature": signature}
    assert messages(HI, said(block, text("a")), HI)[1] == {
        "role": "assistant",
        "content": "a",
        "reasoning": "hm",
        "reasoning_content": "hm",
    }


def test_thinking_that_another_model_hid_is_dropped_and_said_so() -> None:
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    assert messages(HI, said(hidden, text("a")), HI)[1] == {"role": "assistant", "content": "a"}
    assert edits(HI, said(hidden, text("a")), HI) == [{"edit": "dropped_block", "type": "redacted_thinking"}]


@pytest.mark.parametrize(
    ("input_", "arguments"),
    [
        ('{"cmd":"ls","n":[1,2.50,1e5,{}]}', '{"cmd": "ls", "n": [1, 2.50, 1e5, {}]}'),
        ('{ "b" : 1 ,\n"a":"x, y: [z]" }', '{"b": 1, "a": "x, y: [z]"}'),
        (r'{"a":"\u6f22\ud83c\udf89\n\"\\u6f22"}', '{"a": "漢🎉\\n\\"\\\\u6f22"}'),
        (r'{"a":"\u0007\ud83c\udf89","b":"/"}', r'{"a": "\u0007🎉", "b": "/"}'),
        ("{}", "{}"),
        ("null", "{}"),
    ],
)
def test_arguments_are_what_a_model_writes(input_: str, arguments: str) -> None:
    body = b'{"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"bash","input":%s}]}]}'
    (message,) = json.loads(send("messages", body % input_.encode()).body)["messages"]
    assert message["tool_calls"] == [call("a", arguments)]
    assert spaced(arguments.encode()) == arguments


# Results


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ("words", "words"),
        ([text("a"), text("b")], "a\nb"),
        ([], ""),
        (None, ""),
        ([{"type": "tool_reference", "tool_name": "WebFetch"}], "WebFetch"),
        ({"odd": 1}, '{"odd": 1}'),
    ],
)
def test_tool_results(content: Any, sent: str) -> None:
    assert messages(HI, said(use("a")), user(result("a", content)))[2:] == [tool("a", sent)]


def test_a_failed_result_keeps_its_words_and_gets_some_where_it_has_none() -> None:
    failed = user(result("a", "no such file", is_error=True), result("b", "", is_error=True))
    assert messages(HI, said(use("a"), use("b")), failed)[2:] == [tool("a", "no such file"), tool("b", "Error")]


def test_results_in_any_order_follow_the_order_of_the_calls() -> None:
    calls = said(use("a"), use("b"), use("c"))
    results = [result("c", "3"), result("a", "1"), result("x", "?"), result("b", "2")]
    expected = [tool("a", "1"), tool("b", "2"), tool("c", "3"), tool("x", "?")]
    assert messages(HI, calls, user(*results))[2:] == expected
    assert messages(HI, calls, *(user(one) for one in results))[2:] == expected
    assert messages(HI, calls, user(text("go on"), *results))[2:] == [*expected, {"role": "user", "content": "go on"}]


def test_images_of_results_follow_them_as_a_user_message_and_it_is_recorded() -> None:
    """Field cases 86 and 88: chat has no place for an image in a tool's result."""
    results = [result("b", [text("seen"), IMAGE]), result("a", [IMAGE])]
    history = [HI, said(use("a"), use("b")), user(*results)]
    moved = [tool("a", ""), tool("b", "seen"), {"role": "user", "content": [IMAGE_PART, IMAGE_PART]}]
    assert messages(*history)[2:] == moved
    assert messages(*history, said(text("ok")), HI)[2:5] == moved
    assert messages(*history[:2], user(*results, text("and now")))[-1] == {
        "role": "user",
        "content": [IMAGE_PART, IMAGE_PART, text("and now")],
    }
    assert edits(*history) == [
        {"edit": "moved_image", "call_id": "b", "count": 1},
        {"edit": "moved_image", "call_id": "a", "count": 1},
    ]


def test_calls_without_results_stay_as_they_are() -> None:
    sent = messages(HI, said(use("a")), user(text("never mind")), user(result("z")))
    assert sent[2:] == [{"role": "user", "content": "never mind"}, tool("z")]


def test_blocks_of_a_vendors_own_are_dropped_and_said_so() -> None:
    served = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    answer = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    assert messages(HI, said(served, answer, text("a")), HI)[1] == {"role": "assistant", "content": "a"}
    assert [edit["type"] for edit in edits(HI, said(served, answer, text("a")), HI)] == [
        "server_tool_use",
        "web_search_tool_result",
    ]


# Tools


def test_tools_become_functions_and_hosted_ones_are_dropped() -> None:
    deferred = {"name": "fetch", "input_schema": {"type": "object"}, "defer_loading": True, "strict": True}
    hosted = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    outgoing = ask(tools=[BASH | {"cache_control": {"type": "ephemeral"}}, deferred, hosted, BASH])
    assert json.loads(outgoing.body)["tools"] == [
        {"type": "function", "function": {"name": "bash", "description": "runs", "parameters": BASH["input_schema"]}},
        {"type": "function", "function": {"name": "fetch", "parameters": {"type": "object"}}},
    ]
    assert json.loads(outgoing.edits or "") == [
        {"edit": "dropped_tool", "type": "web_search_20250305", "name": "web_search"},
        {"edit": "dropped_tool", "type": None, "name": "bash", "cause": "declared twice"},
    ]
    assert outgoing.hints["tools"] == 2


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "tool", "name": "bash"}, {"tool_choice": {"type": "function", "function": {"name": "bash"}}}),
        ({"type": "tool", "name": "gone"}, {}),
        (None, {}),
    ],
)
def test_tool_choice(choice: Any, sent: dict[str, Any]) -> None:
    body = chat(tools=[BASH], tool_choice=choice)
    assert {name: body[name] for name in ("tool_choice", "parallel_tool_calls") if name in body} == sent
    assert "tool_choice" not in chat(tool_choice=choice)


# The rest


def test_limits_and_stops() -> None:
    """Field case 106: stop sequences reach the engine."""
    body = chat(stop_sequences=["STOP", "END"], temperature=0.5, top_p=0.9, top_k=5)
    assert (body["stop"], body["max_tokens"]) == (["STOP", "END"], 100)
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 5)
    assert "stop" not in chat(stop_sequences=[])


@pytest.mark.parametrize(
    ("members", "sent"),
    [
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"output_config": {"effort": "unheard-of"}}, {}),
        ({"thinking": {"type": "between_tools"}}, {}),
    ],
)
def test_how_to_think(members: dict[str, Any], sent: dict[str, Any]) -> None:
    body = chat(**members)
    assert {name: body[name] for name in ("chat_template_kwargs", "reasoning_effort") if name in body} == sent


@pytest.mark.parametrize("place", ["output_format", "output_config"])
def test_structured_output(place: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
    body = chat(**{place: form if place == "output_format" else {"format": form}})
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": form["schema"]},
    }


def test_a_begun_answer_is_gone_on_with() -> None:
    begun = chat(HI, said(text("The answer is")))
    assert (begun["continue_final_message"], begun["add_generation_prompt"]) == (True, False)
    for last in (said(use("a")), said(), HI):
        assert "continue_final_message" not in chat(HI, last)


def test_what_only_steers_the_vendors_service_goes_no_further() -> None:
    """Field cases 102 and 103: no member is refused for being unknown."""
    members = {
        "metadata": {"user_id": '{"session_id":"s-1"}'},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "service_tier": "auto",
        "mcp_servers": [{"type": "url", "url": "https://a", "name": "m"}],
        "container": None,
        "anthropic_beta": ["x"],
        "speed": "fast",
    }
    outgoing = ask(**members)
    assert json.loads(outgoing.body).keys() == {"model", "messages", "max_tokens", "return_token_ids", "logprobs"}
    assert json.loads(outgoing.edits or "") == [{"edit": "dropped_member", "name": "mcp_servers"}]
    assert outgoing.hints["metadata"] == members["metadata"]


def test_a_runs_sampling_lies_over_it_as_over_chat() -> None:
    overrides = Overrides(sampling={"temperature": 1.0}, model="policy", max_tokens_cap=50)
    request = {"model": "claude", "max_tokens": 100, "temperature": 0.1, "messages": [HI], "stream": True}
    outgoing = send("messages", request, overrides=overrides)
    body = json.loads(outgoing.body)
    assert (body["temperature"], body["model"], body["max_tokens"], body["stream"]) == (1.0, "policy", 50, True)
    assert [edit["edit"] for edit in json.loads(outgoing.edits or "")] == ["sampling", "max_tokens", "model"]
    assert outgoing.model_requested == "claude"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (b"[1]", "not a JSON object"),
        ({"model": "m"}, "messages: Field required"),
        ({"messages": "hi"}, "messages: "),
        ({"messages": [HI, {"role": "tool", "content": "x"}]}, r"messages\.1\.role: 'tool' is not"),
        ({"messages": [{"content": "x"}]}, r"messages\.0: .*role"),
        ({"messages": [{"role": "user", "content": 5}]}, r"messages\.0: "),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, r"messages\.0: .*type"),
        ({"messages": [HI], "tools": {"a": 1}}, "`tools` cannot be read"),
        ({"messages": [HI], "stop_sequences": "x"}, "`stop_sequences` cannot be read"),
        ({"messages": [HI], "system": 5}, "`system` cannot be read"),
        ({"messages": [HI], "max_tokens": "many"}, "`max_tokens` must be a whole number"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(request_: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        send("messages", request_)


NAMES = ["role", "content", "type", "text", "id", "name", "input", "tool_use_id", "source", "thinking", "data", "url"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": JUNK})
MEMBERS = ("system", "tools", "tool_choice", "thinking", "output_config", "stop_sequences")


@settings(max_examples=100, deadline=None)
@given(st.fixed_dictionaries({"messages": JUNK | st.lists(ENTRY, max_size=3)}, optional=dict.fromkeys(MEMBERS, JUNK)))
def test_any_request_is_either_translated_or_refused(request: dict[str, Any]) -> None:
    with suppress(BadRequest):
        assert isinstance(json.loads(send("messages", request).body)["messages"], list)
