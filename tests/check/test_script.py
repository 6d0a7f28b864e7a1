"""What the scripted policy says, and in which tokens: values in, values out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.harness_check.script import ASIDE, COMMAND, DONE, answer
from forge.harness_check.words import END, Words, render, tool_call


def tool(name: str, required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required or list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}
USER = {"role": "user", "content": "go"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": ""}
OTHERS = [tool("read", path=TEXT), tool("monitor", command=TEXT), {"type": "web_search"}]
SHELLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (tool("bash", command=TEXT), {"command": COMMAND}),
    (tool("Bash", ["command"], command=TEXT, timeout={"type": "number"}), {"command": COMMAND}),
    (tool("exec_command", ["cmd"], cmd=TEXT, workdir=TEXT), {"cmd": COMMAND}),
    (tool("shell", command={"type": "array", "items": TEXT}), {"command": ["sh", "-c", COMMAND]}),
    (tool("terminal", command={"type": ["string", "null"]}), {"command": COMMAND}),
    (
        tool("run_shell_command", command=TEXT, is_background={"type": "boolean"}, mode={"enum": ["fast", "slow"]}),
        {"is_background": False, "mode": "fast", "command": COMMAND},
    ),
    (tool("exec", command={"type": "STRING"}, n={"type": "INTEGER"}), {"n": 1, "command": COMMAND}),
]


@pytest.mark.parametrize(("shell", "arguments"), SHELLS, ids=[each[0]["function"]["name"] for each in SHELLS])
def test_the_shell_is_found_by_its_schema_and_called_as_that_wants(
    shell: dict[str, Any], arguments: dict[str, Any]
) -> None:
    asked = answer({"messages": [USER], "tools": [*OTHERS, shell]})
    assert asked.tool == shell["function"]["name"]
    assert json.loads(asked.arguments) == arguments
    after = answer({"messages": [USER, {"role": "assistant"}, RESULT], "tools": [*OTHERS, shell]})
    assert (after.text, after.tool) == (DONE, None)


def test_without_a_shell_by_name_any_tool_that_takes_a_command_will_do() -> None:
    assert answer({"messages": [USER], "tools": OTHERS}).tool == "monitor"


def test_without_tools_it_is_a_side_call_and_with_none_that_fits_it_ends() -> None:
    assert answer({"messages": [USER]}).text == ASIDE
    assert answer({"messages": [USER], "tools": []}).text == ASIDE
    assert answer({"messages": [USER], "tools": OTHERS[:1]}).text == DONE
    optional = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": TEXT}}}}
    assert answer({"messages": [USER], "tools": [optional]}).text == DONE


def test_a_harness_that_ends_by_a_command_gets_one() -> None:
    system = {"role": "system", "content": "Submit with `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT`."}
    tools = [tool("bash", command=TEXT)]
    assert json.loads(answer({"messages": [system, USER], "tools": tools}).arguments) == {"command": COMMAND}
    ending = answer({"messages": [system, USER, {"role": "assistant"}, RESULT], "tools": tools})
    assert json.loads(ending.arguments) == {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}


PARTS = st.lists(st.sampled_from(["<|im_start|>", END, "<tool_call>", " a", "b", "\n", "{", '"', "é", "  ", "_1"]))


@given(PARTS)
def test_tokens_are_the_text_again(parts: list[str]) -> None:
    words = Words()
    text = "".join(parts)
    assert words.decode(words.encode(text)) == text


def said(text: str, arguments: str) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


ARGUMENTS = json.dumps({"command": COMMAND})


@pytest.mark.parametrize("written", [ARGUMENTS, '{"command":"echo hi > hello.txt"}'])
def test_a_history_that_says_the_same_continues_what_was_sampled(written: str) -> None:
    words = Words()
    request = {"messages": [USER], "tools": [tool("bash", command=TEXT)]}
    before = words.encode(render(request)) + words.encode(tool_call("bash", ARGUMENTS)) + words.encode(END)
    for content in ("", None, [{"type": "text", "text": ""}]):
        echoed = said("", written) | {"content": content}
        after = words.encode(render(request | {"messages": [USER, echoed, RESULT]}))
        assert after[: len(before)] == before


@pytest.mark.parametrize("written", ["{}", '{"command": "echo hi"}', "not JSON"])
def test_a_history_that_says_something_else_does_not(written: str) -> None:
    assert render({"messages": [said("", written)]}) != render({"messages": [said("", ARGUMENTS)]})
