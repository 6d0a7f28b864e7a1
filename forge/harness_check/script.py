"""What the scripted policy says: one shell command, then the end. Pure: a chat request in, an answer out.

It knows no harness. The tool is found by what its schema says of itself: a required ``command`` (or ``cmd``), and of
several such tools the one whose name speaks of a shell; whatever else it requires gets the plainest value that its
schema allows. A harness that ends by a command, not by an answer, says so in its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from forge.tasks import Grader, Task

COMMAND: Final = "echo hi > hello.txt"
TASK: Final = Task(
    id="hello",
    prompt="Create the file hello.txt with the one word hi in it, by a shell command. Then say that you are done.",
    grader=Grader(command="grep -qx hi hello.txt"),
    row={"id": "hello"},
)
DONE: Final = "Done."
ASIDE: Final = "Create hello.txt"
"""The answer to a call without tools: a title, a summary."""
COMMANDS: Final = ("command", "cmd")
SHELLS: Final = ("bash", "shell", "exec", "terminal")
ENDINGS: Final = ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",)
"""Words that end a session when a command prints them."""
PLAINEST: Final[Mapping[str, object]] = {
    "string": "create hello.txt",
    "boolean": False,
    "integer": 1,
    "number": 1,
    "array": [],
    "object": {},
}


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    tool: str | None = None
    arguments: str = ""
    """JSON, as a model writes it."""


def answer(request: Mapping[str, Any]) -> Reply:
    messages: Sequence[Mapping[str, Any]] = request["messages"]
    functions = [tool["function"] for tool in request.get("tools") or () if "function" in tool]
    found = shell(functions)
    if found is None:
        return Reply(DONE if functions else ASIDE)
    if not any(message["role"] == "tool" for message in messages):
        return _call(found, COMMAND)
    said = json.dumps(messages)
    ending = next((word for word in ENDINGS if word in said), None)
    return Reply(DONE) if ending is None else _call(found, f"echo {ending}")


def shell(functions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The tool that runs a command; None if there is none."""
    takes = [each for each in functions if _argument(each) is not None]
    named = [each for each in takes if any(word in each["name"].lower() for word in SHELLS)]
    return next(iter(named or takes), None)


def _argument(function: Mapping[str, Any]) -> str | None:
    """The required property that takes the command."""
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    return next((name for name in COMMANDS if name in required and name in schema.get("properties", {})), None)


def _call(function: Mapping[str, Any], command: str) -> Reply:
    argument = _argument(function)
    properties = function["parameters"]["properties"]
    arguments: dict[str, object] = {
        name: _plainest(properties.get(name, {})) for name in function["parameters"]["required"] if name != argument
    }
    assert argument is not None
    words = _type(properties[argument]) == "array"
    arguments[argument] = ["sh", "-c", command] if words else command
    return Reply(tool=function["name"], arguments=json.dumps(arguments))


def _plainest(schema: Mapping[str, Any]) -> object:
    return schema["enum"][0] if schema.get("enum") else PLAINEST.get(_type(schema), PLAINEST["string"])


def _type(schema: Mapping[str, Any]) -> str:
    """Gemini's schemas write types in capitals; some name several."""
    named = schema.get("type", "string")
    return str(named if isinstance(named, str) else named[0]).lower()
