"""Requests are checked at the door, and the message names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forge.policy import protocol
from forge.policy.protocol import Chat, Completion, Grammar, Refused, Wanted

USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "g"}},
]


def chat(**fields: Any) -> Wanted:
    return protocol.check(protocol.parse(json.dumps({"messages": USER} | fields).encode(), Chat))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": ["a", ""]}, "stop"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": TOOLS, "tool_choice": "required", "structured_outputs": {"regex": "a"}}, "tool_choice"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Refused) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"messages": "hi"}'])
def test_bodies_that_are_no_request(body: bytes) -> None:
    with pytest.raises(Refused):
        protocol.parse(body, Chat)


def test_neutral_and_unknown_fields_pass() -> None:
    neutral = {"n": 1, "presence_penalty": 0.0, "frequency_penalty": 0, "repetition_penalty": 1.0, "logit_bias": {}}
    off = {"top_p": 1, "top_k": -1, "min_p": 0, "store": False, "reasoning_effort": "low", "stop": None}
    assert chat(**neutral, **off, max_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_tools_and_grammars() -> None:
    assert chat(tools=TOOLS).parse_tools
    assert not chat(tools=TOOLS, tool_choice="none").parse_tools
    assert chat(tools=TOOLS, tool_choice="required").grammar == Grammar("tools", TOOLS)
    named = {"type": "function", "function": {"name": "g"}}
    assert chat(tools=TOOLS, tool_choice=named).grammar == Grammar("tools", TOOLS[1:])
    schema = {"type": "object"}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert chat(response_format=form).grammar == Grammar("json", schema)
    assert chat(response_format={"type": "json_object"}).grammar == Grammar("json", {"type": "object"})
    assert chat(response_format={"type": "text"}).grammar is None
    assert chat(structured_outputs={"regex": "a+"}).grammar == Grammar("regex", "a+")


def test_completions() -> None:
    wanted = protocol.check(protocol.parse(b'{"prompt": [1, 2], "logprobs": 0}', Completion))
    assert (wanted.max_tokens, wanted.log_probs, wanted.top) == (16, True, 0)
    with pytest.raises(Refused, match="echo"):
        protocol.check(protocol.parse(b'{"prompt": "a", "echo": true}', Completion))


def test_messages_as_the_template_takes_them() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":  1}'}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]
    parsed = protocol.parse(json.dumps({"messages": messages}).encode(), Chat)
    assert protocol.plain(parsed.messages) == [
        {"role": "system", "content": "a\nb", "tool_calls": []},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": '{"a":  1}'}]},
        {"role": "tool", "content": "done", "tool_calls": []},
    ]


def test_images_are_refused_by_name() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
    with pytest.raises(Refused, match="image_url"):
        protocol.plain(protocol.parse(json.dumps(body).encode(), Chat).messages)
