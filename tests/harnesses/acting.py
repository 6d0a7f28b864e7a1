"""What the scripted policy says to a real harness: a tool task in few turns, whatever the harness calls its tools.

A policy is a function of the request alone (how many tool results it holds), so that a harness's own retries get the
same answer again. Faults are put before it by ``Script``, which counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.script import Fault, Gate, Json, Turn

DONE = "Done."
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""How mini-swe-agent is told that the task is over: it takes no plain answer."""
SHELLS = ("exec_command", "shell", "bash", "Bash", "exec", "run_shell_command", "terminal", "local_shell")
ARGUMENTS = ("cmd", "command")
EXTRA = {"description": "runs it"}
"""Required by some shell tools beside the command."""
HELLO = "echo hi > hello.txt"


def shell(request: Json) -> tuple[str, dict[str, Any]] | None:
    """The shell tool that the request offers: its name and its parameters' schema."""
    for tool in request.get("tools") or ():
        function = tool["function"]
        if function["name"] in SHELLS:
            return function["name"], function.get("parameters") or {}
    return None


def run(request: Json, command: str) -> tuple[str, str]:
    """A call of the shell tool, its arguments spaced as models write them."""
    found = shell(request)
    assert found is not None, "no shell tool was offered"
    name, schema = found
    properties = schema.get("properties", {})
    argument = next(name for name in ARGUMENTS if name in properties)
    value: Any = ["bash", "-c", command] if properties[argument].get("type") == "array" else command
    extra = {name: text for name, text in EXTRA.items() if name in schema.get("required", ())}
    return name, json.dumps({argument: value} | extra)


def results(request: Json) -> int:
    return sum(message["role"] == "tool" for message in request["messages"])


def ending(request: Json, text: str = DONE, reasoning: str | None = None) -> Turn:
    """The last turn: plain text, or what ends the harness that takes none."""
    found = shell(request)
    if found is not None and "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in json.dumps(request["messages"][:2]):
        return Turn(text, tool_calls=[run(request, SUBMIT)], reasoning=reasoning)
    return Turn(text, reasoning=reasoning)


def side(request: Json) -> Turn | None:
    """Calls beside the task (titles, summaries, memories) come without a shell."""
    return Turn("A summary of what was done: nothing yet.") if shell(request) is None else None


def plain(request: Json) -> Turn:
    return side(request) or ending(request)


def tool_turn(request: Json) -> Turn:
    if (aside := side(request)) is not None:
        return aside
    return ending(request) if results(request) else Turn(tool_calls=[run(request, HELLO)])


def parallel(request: Json) -> Turn:
    if (aside := side(request)) is not None:
        return aside
    if results(request):
        return ending(request)
    return Turn(tool_calls=[run(request, HELLO), run(request, "echo ho > second.txt")])


def reasoning(request: Json) -> Turn:
    """Two tool turns, each after a thought."""
    if (aside := side(request)) is not None:
        return aside
    done = results(request)
    if done >= 2:
        return ending(request, reasoning="All is there")
    return Turn(tool_calls=[run(request, (HELLO, "cat hello.txt")[done])], reasoning=f"Step {done} of this")


def malformed(request: Json) -> Turn:
    """Arguments that are no JSON; once the harness says so, the right ones."""
    if (aside := side(request)) is not None:
        return aside
    done = results(request)
    if done >= 2:
        return ending(request)
    name, arguments = run(request, HELLO)
    return Turn(tool_calls=[(name, arguments if done else arguments[:-6])])


SUBTASK = "SUBTASK-7: create hello.txt containing hi"
SUBAGENTS = ("Task", "Agent", "task", "agent", "delegate_task")
TASK_FIELDS = ("prompt", "goal", "message", "instructions")
KINDS = ("general-purpose", "general")
"""Of sub-agents, where a harness wants one named."""


def subagent(request: Json) -> Turn:
    """The main agent hands the task to a sub-agent, which does it with the shell."""
    if (aside := side(request)) is not None:
        return aside
    asked = json.dumps([m.get("content") for m in request["messages"] if m["role"] == "user"])
    handed = json.dumps([m.get("tool_calls") for m in request["messages"] if m["role"] == "assistant"])
    if "SUBTASK-7" in asked and "SUBTASK-7" not in handed:
        return Turn("The file is there.") if results(request) else Turn(tool_calls=[run(request, HELLO)])
    return ending(request) if results(request) else Turn(tool_calls=[_hand_over(request)])


def _hand_over(request: Json) -> tuple[str, str]:
    offered = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in request["tools"]}
    name = next((name for name in SUBAGENTS if name in offered), None)
    assert name is not None, f"no sub-agent tool among {sorted(offered)}"
    properties, required = offered[name].get("properties", {}), set(offered[name].get("required", ()))
    arguments: dict[str, Any] = {}
    for field_name, schema in properties.items():
        if field_name in TASK_FIELDS and not arguments.keys() & set(TASK_FIELDS):
            arguments[field_name] = SUBTASK
        elif field_name == "subagent_type":
            arguments[field_name] = _kind(schema, json.dumps(request["tools"]))
        elif field_name in required:
            arguments[field_name] = "a small task"
    return name, json.dumps(arguments)


def _kind(schema: dict[str, Any], tools: str) -> str:
    allowed = schema.get("enum")
    return next((kind for kind in KINDS if (kind in allowed if allowed else f"{kind}" in tools)), KINDS[-1])


@dataclass
class Script:
    """A policy with a fault in its ``at``-th main call (those that offer a shell), counted from 0."""

    policy: Callable[[Json], Turn]
    fault: Fault | None = None
    at: int = 0
    slow: Gate | None = None
    """Shut for the call at ``at``; whoever drives opens it."""
    asked: int = field(default=0, init=False)

    def __call__(self, request: Json) -> Turn:
        turn = self.policy(request)
        if shell(request) is None:
            return turn
        number, self.asked = self.asked, self.asked + 1
        if number != self.at:
            return turn
        if self.fault is not None:
            return Turn(turn.text, turn.tool_calls, turn.reasoning, turn.finish, self.fault)
        return Turn(turn.text, turn.tool_calls, turn.reasoning, turn.finish, gate=self.slow) if self.slow else turn
