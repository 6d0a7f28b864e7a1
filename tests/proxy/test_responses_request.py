from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.dialects.base import BadRequest, Outgoing, Overrides
from forge.proxy.dialects.responses_input import hide_reasoning
from forge.proxy.dialects.responses_tools import custom_arguments, custom_input
from tests.proxy.wire import send

HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
SHELL = {
    "type": "function",
    "name": "exec_command",
    "description": "runs",
    "parameters": {"type": "object"},
    "strict": False,
}


def ask(items: Any = "hi", **members: Any) -> Outgoing:
    return send("responses", {"model": "m", "input": items} | members)


def chat(items: Any = "hi", **members: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(ask(items, **members).body)
    return decoded


def messages(*items: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = chat(list(items), **members)["messages"]
    return found


def edits(*items: dict[str, Any], **members: Any) -> list[dict[str, Any]]:
    return json.loads(ask(list(items) or "hi", **members).edits or "[]")  # type: ignore[no-any-return]


def call(call_id: str, name: str = "exec_command", arguments: str = '{"cmd": "ls"}', **more: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments} | more


def output(call_id: str, value: Any = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": value}


def said(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def chat_call(call_id: str, name: str = "exec_command", arguments: str = '{"cmd": "ls"}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Input


def test_the_smallest_request() -> None:
    outgoing = ask()
    assert json.loads(outgoing.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "return_token_ids": True,
        "logprobs": True,
    }
    assert outgoing.edited
    assert not outgoing.stream
    assert outgoing.model_requested == "m"
    assert outgoing.edits is None


def test_instructions_and_roles() -> None:
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": "dev"},
        {"type": "message", "role": "system", "content": []},
        HI,
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}],
        },
    ]
    assert messages(*items, instructions="base") == [
        {"role": "system", "content": "base"},
        {"role": "system", "content": "dev"},
        {"role": "system", "content": ""},
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "a\nb"},
    ]


def test_one_answer_that_comes_back_as_items_is_one_message_again() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "shown"}],
        "encrypted_content": hide_reasoning("thought 漢字"),
    }
    items = [HI, reasoning, said("I will."), call("a"), call("b"), output("a"), output("b", "2"), said("Done.")]
    assert messages(*items) == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "I will.",
            "reasoning": "thought 漢字",
            "reasoning_content": "thought 漢字",
            "tool_calls": [chat_call("a"), chat_call("b")],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "assistant", "content": "Done."},
    ]


def test_a_call_without_text_has_null_content_and_text_after_a_call_joins_it() -> None:
    assert messages(call("a"), output("a"))[0] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [chat_call("a")],
    }
    assert messages(said("A"), call("a"), said("B"), output("a"))[0]["content"] == "AB"
    assert [m["content"] for m in messages(said("A"), said("B"))] == ["A", "B"]


def test_arguments_come_back_as_they_were_given() -> None:
    """Field case 99: no repair of what the model wrote."""
    broken = '{"command": "echo hi > hel'
    assert messages(call("a", arguments=broken))[0]["tool_calls"][0]["function"]["arguments"] == broken


@pytest.mark.parametrize(
    ("item", "reasoning"),
    [
        ({"encrypted_content": hide_reasoning("mine")}, "mine"),
        ({"summary": [{"type": "summary_text", "text": "plain"}]}, "plain"),
        ({"content": [{"type": "reasoning_text", "text": "full"}], "summary": [], "encrypted_content": None}, "full"),
        ({"encrypted_content": "gAAAA-another-models", "summary": [{"type": "summary_text", "text": "x"}]}, None),
        ({"encrypted_content": "forge1.***", "summary": []}, None),
        ({"summary": []}, None),
    ],
)
def test_reasoning(item: dict[str, Any], reasoning: str | None) -> None:
    (message,) = messages({"type": "reasoning", "summary": []} | item, said("x"))
    assert message.get("reasoning_content") == reasoning
    assert message["content"] == "x"


def test_reasoning_that_another_model_hid_is_dropped_and_said_so() -> None:
    (edit,) = edits({"type": "reasoning", "encrypted_content": "gAAAA", "summary": []}, HI)
    assert edit == {"edit": "dropped_item", "type": "reasoning", "cause": "not written by this engine"}


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "a\nb"),
        ({"content": "x", "success": True}, '{"content": "x", "success": true}'),
        ("", ""),
        (None, ""),
    ],
)
def test_tool_results(value: Any, content: str) -> None:
    assert messages(call("a"), output("a", value))[1] == {"role": "tool", "tool_call_id": "a", "content": content}


def test_images_in_tool_results_follow_all_results_as_a_user_message() -> None:
    """Field case 65: a list of parts is a result too."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"}
    found = messages(call("a"), call("b"), output("a", [image]), output("b", [image]), HI)
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA", "detail": "low"}}
    assert [m["role"] for m in found] == ["assistant", "tool", "tool", "user", "user"]
    assert found[3]["content"] == [part, part]
    assert edits(call("a"), output("a", [image])) == [{"edit": "moved_image", "call_id": "a", "count": 1}]


def test_images_of_a_user_keep_their_place() -> None:
    parts = [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "http://x/y.png"}]
    assert messages({"role": "user", "content": parts})[0]["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]


def test_custom_and_shell_calls_of_the_history() -> None:
    """Field cases 56, 57: the history is mapped as the tools are."""
    custom = {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": '*** "x"\n漢'}
    shell = {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "b",
        "status": "completed",
        "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None},
    }
    results = [
        {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"},
        {"type": "local_shell_call_output", "id": "b", "output": "ok"},
    ]
    found = messages(custom, shell, *results)
    functions = [c["function"] for c in found[0]["tool_calls"]]
    assert functions == [
        {"name": "apply_patch", "arguments": '{"input": "*** \\"x\\"\\n漢"}'},
        {"name": "local_shell", "arguments": '{"command":["ls"]}'},
    ]
    assert [(m["role"], m["tool_call_id"]) for m in found[1:]] == [("tool", "a"), ("tool", "b")]


def test_items_of_a_vendors_own_are_dropped_and_said_so() -> None:
    items: list[dict[str, Any]] = [
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search"}},
        {"type": "compaction"},
        HI,
    ]
    assert messages(*items) == [{"role": "user", "content": "hi"}]
    assert [edit["type"] for edit in edits(*items)] == ["web_search_call", "compaction"]
    assert edits({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}) == [
        {"edit": "dropped_part", "type": "input_file"}
    ]


# Tools


def test_functions_lose_strict_and_keep_their_schema_as_it_is() -> None:
    body = json.dumps({"input": "hi", "tools": [SHELL]}).replace(
        '{"type": "object"}', '{"type" :  "object", "x":1e400}'
    )
    sent = send("responses", body.encode()).body
    assert b'"parameters":{"type" :  "object", "x":1e400}' in sent
    assert b"strict" not in sent


def test_custom_namespace_and_shell_tools_become_functions_and_hosted_ones_are_dropped() -> None:
    """Field cases 59, 62, 63, 64: what an engine cannot run is left out, and each is named in the record."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: X"}
    tools = [
        SHELL,
        {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": grammar},
        {"type": "namespace", "name": "agents", "tools": [SHELL, {"type": "custom", "name": "raw"}]},
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": True},
        SHELL,
    ]
    functions = [tool["function"] for tool in chat(tools=tools)["tools"]]
    assert [function["name"] for function in functions] == [
        "exec_command",
        "apply_patch",
        "agents__exec_command",
        "agents__raw",
        "local_shell",
    ]
    assert functions[1]["parameters"]["required"] == ["input"]
    assert functions[1]["description"].endswith("lark grammar:\nstart: X")
    assert functions[0] == {"name": "exec_command", "description": "runs", "parameters": {"type": "object"}}
    assert [edit["type"] for edit in edits(tools=tools)] == ["web_search", "function"]


def test_no_tools_at_all() -> None:
    for tools in ([], None, [{"type": "web_search"}]):
        sent = chat(tools=tools, tool_choice="auto", parallel_tool_calls=True)
        assert not sent.keys() & {"tools", "tool_choice", "parallel_tool_calls"}
    assert ask(tools=[]).hints["tools"] == 0


def test_tools_declared_in_the_input() -> None:
    item = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "namespace", "name": "f", "tools": [SHELL]}],
    }
    assert chat([item, HI])["tools"][0]["function"]["name"] == "f__exec_command"


def test_a_namespaced_call_of_the_history_meets_its_tool_by_name() -> None:
    assert (
        messages(call("a", name="spawn", namespace="agents"))[0]["tool_calls"][0]["function"]["name"] == "agents__spawn"
    )


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (None, None),
        ({"type": "function", "name": "exec_command"}, {"type": "function", "function": {"name": "exec_command"}}),
        ({"type": "web_search"}, None),
    ],
)
def test_tool_choice(choice: Any, sent: Any) -> None:
    assert chat(tools=[SHELL], tool_choice=choice).get("tool_choice") == sent


def test_allowed_tools() -> None:
    other = SHELL | {"name": "other"}
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "other"}]}
    sent = chat(tools=[SHELL, other], tool_choice=choice)
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["other"]
    assert sent["tool_choice"] == "required"


# The rest


def test_members_with_other_names() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    sent = chat(max_output_tokens=7, reasoning={"effort": "low", "summary": "auto"}, text={"format": schema})
    assert sent["max_tokens"] == 7
    assert sent["reasoning_effort"] == "low"
    json_schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": json_schema}
    assert chat(text={"format": {"type": "json_object"}})["response_format"] == {"type": "json_object"}
    assert "response_format" not in chat(text={"format": {"type": "text"}, "verbosity": "low"})


def test_members_with_the_same_name_and_those_that_go_no_further() -> None:
    """Field case 68."""
    kept = {"temperature": 0.5, "top_p": 0.9, "seed": 3, "presence_penalty": 0.1}
    silent = {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "thread",
        "client_metadata": {"thread_id": "t"},
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "truncation": "auto",
        "user": "u",
        "previous_response_id": None,
        "conversation": None,
    }
    outgoing = ask(**kept, **silent)
    sent = json.loads(outgoing.body)
    assert {name: sent[name] for name in kept} == kept
    assert not sent.keys() & silent.keys()
    assert outgoing.hints["prompt_cache_key"] == "thread"
    assert outgoing.hints["client_metadata"] == {"thread_id": "t"}
    assert outgoing.hints["first_user"] == "hi"
    assert json.loads(outgoing.sampling_asked or "") == kept


def test_a_runs_sampling_lies_over_it_as_over_chat() -> None:
    overrides = Overrides(sampling={"temperature": 1.0, "max_tokens": 64}, model="policy")
    outgoing = send("responses", {"model": "m", "input": "hi", "temperature": 0.2, "stream": True}, overrides=overrides)
    sent = json.loads(outgoing.body)
    assert (sent["temperature"], sent["max_tokens"], sent["model"], sent["stream"]) == (1.0, 64, "policy", True)
    assert sent["stream_options"] == {"include_usage": True}
    assert [edit["edit"] for edit in json.loads(outgoing.edits or "")] == ["sampling", "max_tokens", "model"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (b"nonsense", "not a JSON object"),
        ({}, "`input` is missing"),
        ({"input": 5}, "`input` cannot be read"),
        ({"input": [5]}, "`input` cannot be read"),
        ({"input": [HI, {"type": "function_call", "name": 3}]}, r"input\[1\] cannot be read"),
        ({"input": [{"type": "item_reference", "id": "rs_1"}]}, "not stored here"),
        ({"input": "hi", "previous_response_id": "resp_1"}, "nothing is kept between calls"),
        ({"input": "hi", "conversation": "c"}, "`conversation` is not supported"),
        ({"input": "hi", "background": True}, "`background` is not supported"),
        ({"input": "hi", "tools": {}}, "`tools` cannot be read"),
        ({"input": "hi", "tool_choice": 3}, "`tool_choice` cannot be read"),
        ({"input": "hi", "stream": "yes"}, "`stream` cannot be read"),
        ({"input": "hi", "text": []}, "`text` cannot be read"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(request_: Any, words: str) -> None:
    """Field cases 67, 69, 70: nothing is kept between calls, and a reference to something kept is refused in words."""
    with pytest.raises(BadRequest, match=words):
        send("responses", request_)


@given(st.text())
def test_a_custom_tools_input_survives_both_ways(text: str) -> None:
    assert custom_input(custom_arguments(text)) == text


@pytest.mark.parametrize(
    "arguments", ["", "{", '{"input": 5}', '{"patch": "x"}', '{"input": "a", "more": 1}', "free text"]
)
def test_arguments_that_are_no_input_stay_as_they_are(arguments: str) -> None:
    assert custom_input(arguments) == arguments


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["message", "user", "function_call", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "role", "content", "text", "output", "name", "arguments", "summary", "action", "tools"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["input", "tools", "tool_choice", "text", "stream", "reasoning"]), json_values))
def test_any_request_is_either_translated_or_refused(request: dict[str, Any]) -> None:
    with suppress(BadRequest):
        assert isinstance(json.loads(send("responses", request).body)["messages"], list)
