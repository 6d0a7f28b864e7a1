"""The rest of a responses request as chat's members: tools, choice, format, limits, sampling.

Owns which members mean something to an engine; those that only steer a vendor's own service (``store``, ``include``,
``prompt_cache_key`` ...) are accepted and go no further. The one non-obvious fact: nothing is kept between calls, so
members that refer to an earlier one are refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.asked import NULL, given, members_of, read
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.overlay import DISTRIBUTION
from forge.proxy.dialects.responses_input import History, declared_tools
from forge.proxy.dialects.responses_tools import FUNCTION, Tools, flat_name
from forge.proxy.sessions.turns import Request

STATEFUL: Final = ("previous_response_id", "conversation", "prompt")
SAME_NAME: Final = DISTRIBUTION | {"stop", "stop_token_ids", "ignore_eos", "parallel_tool_calls"}
"""Members that chat knows by the same name."""
ECHOED: Final[Mapping[str, bytes]] = {
    "max_output_tokens": b"null",
    "metadata": b"{}",
    "parallel_tool_calls": b"true",
    "prompt_cache_key": b"null",
    "reasoning": b"null",
    "store": b"false",
    "temperature": b"null",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "top_p": b"null",
    "truncation": b'"disabled"',
    "user": b"null",
}
"""Members of the request that stand in the response object, with their defaults."""


@dataclass(frozen=True, slots=True)
class Translated:
    members: Mapping[str, bytes | Raw]
    """The chat request."""
    tools: Tools
    notices: list[Mapping[str, Any]]
    stream: bool
    echo: Mapping[str, Raw]
    hides_reasoning: bool
    """The harness asked for ``reasoning.encrypted_content``."""


def translate(body: Request) -> Translated:
    asked = members_of(body)
    _refuse_state(asked)
    history = History()
    instructions = read(asked, "instructions", str)
    if instructions:
        history.messages.append({"role": "system", "content": instructions})
    if "input" not in asked:
        raise BadRequest("`input` is missing", param="input")
    history.add_input(asked["input"])
    tools = declared_tools(asked.get("tools", NULL), history.tools)
    stream = bool(read(asked, "stream", bool))
    members: dict[str, bytes | Raw] = {"model": asked["model"]} if "model" in asked else {}
    members["messages"] = msgspec.json.encode(history.messages)
    notices = [*history.notices, *tools.dropped]
    tools = _choose(asked, tools, members, notices)
    members.update(_renamed(asked))
    members.update({name: asked[name] for name in SAME_NAME if given(asked, name)})
    if not tools.functions:
        members.pop("parallel_tool_calls", None)
    if stream:
        members["stream"] = b"true"
    echo = {name: asked.get(name, Raw(default)) for name, default in ECHOED.items()}
    include = read(asked, "include", list[str]) or []
    return Translated(members, tools, notices, stream, echo, "reasoning.encrypted_content" in include)


def _refuse_state(asked: Mapping[str, Raw]) -> None:
    for name in STATEFUL:
        if given(asked, name):
            raise BadRequest(
                f"`{name}` is not supported: nothing is kept between calls; send the whole input each time",
                code="unsupported_parameter",
                param=name,
            )
    if read(asked, "background", bool):
        raise BadRequest("`background` is not supported", code="unsupported_parameter", param="background")


class _Choice(msgspec.Struct):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str = "auto"
    tools: list[_Choice] | None = None

    @property
    def flat(self) -> str:
        return flat_name(self.name or self.type, self.namespace)


def _choose(
    asked: Mapping[str, Raw], tools: Tools, members: dict[str, bytes | Raw], notices: list[Mapping[str, Any]]
) -> Tools:
    """Sets chat's ``tools`` and ``tool_choice``; gives the tools that are left."""
    choice: str | _Choice | None = read(asked, "tool_choice", str | _Choice)
    named: Any = choice
    if isinstance(choice, _Choice):
        if choice.type == "allowed_tools":
            tools = tools.only(allowed.flat for allowed in choice.tools or ())
            named = choice.mode
        elif choice.flat in tools.declared:
            named = {"type": FUNCTION, "function": {"name": choice.flat}}
        else:
            notices.append({"edit": "dropped_choice", "type": choice.type, "name": choice.name})
            named = None
    if tools.functions:
        members["tools"] = msgspec.json.encode(tools.functions)
        if named is not None:
            members["tool_choice"] = msgspec.json.encode(named)
    return tools


class _Format(msgspec.Struct):
    type: str = "text"
    name: str = "answer"
    schema: Raw = NULL
    strict: bool | None = None
    description: str | None = None


class _Text(msgspec.Struct):
    format: _Format | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


def _renamed(asked: Mapping[str, Raw]) -> dict[str, bytes | Raw]:
    """Members that chat knows by other names."""
    members: dict[str, bytes | Raw] = {}
    if given(asked, "max_output_tokens"):
        members["max_tokens"] = asked["max_output_tokens"]
    reasoning: _Reasoning | None = read(asked, "reasoning", _Reasoning)
    if reasoning is not None and reasoning.effort is not None:
        members["reasoning_effort"] = msgspec.json.encode(reasoning.effort)
    text: _Text | None = read(asked, "text", _Text)
    form = text.format if text is not None else None
    if form is not None and form.type == "json_schema":
        schema = {"name": form.name, "schema": form.schema, "strict": form.strict, "description": form.description}
        kept = {name: value for name, value in schema.items() if value is not None}
        members["response_format"] = msgspec.json.encode({"type": "json_schema", "json_schema": kept})
    elif form is not None and form.type != "text":
        members["response_format"] = msgspec.json.encode({"type": form.type})
    return members
