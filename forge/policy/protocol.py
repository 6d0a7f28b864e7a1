"""What clients send: OpenAI's fields and vLLM's, checked at the door.

Pure. It turns a body into a ``Wanted`` or raises ``Refused`` with the message that names the field. Not obvious: an
unknown field is ignored, as every server of this kind does, but a known one that we cannot honour is refused, since
ignoring it would change the distribution that the answer is drawn from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")
Tools = list[dict[str, Any]]

MAX_TOP = 20
UNIT = Annotated[float, Meta(ge=0, le=1)]


class Refused(Exception):
    """A request that gets an error answer."""

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.status = message, param, status


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Structured(msgspec.Struct):
    regex: str | None = None
    json: str | dict[str, Any] | None = None


class JsonSchema(msgspec.Struct):
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Common(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: UNIT | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    return_token_ids: bool | None = None
    structured_outputs: Structured | None = None
    response_format: ResponseFormat | None = None
    n: int | None = None
    best_of: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    return_tokens_as_token_ids: bool | None = None
    min_tokens: int | None = None
    echo: bool | None = None
    suffix: str | None = None


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "min_tokens": (0,),
    "echo": (False,),
    "suffix": ("",),
}
"""Fields with one value that we can honour, besides null."""


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class Call(msgspec.Struct):
    function: Function


class Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[Call] | None = None


class Chat(Common, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    tools: Tools | None = None
    tool_choice: str | dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None


class Completion(Common, kw_only=True):
    prompt: str | list[int | str]
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None


class GoOn(msgspec.Struct):
    """An answer that was given up: the rest of it is wanted."""

    request: Chat
    """As it was first asked."""
    prompt_ids: list[int]
    output_ids: list[int]
    """What was sampled so far."""
    id: str
    created: int


class Tokenize(msgspec.Struct):
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Tools | None = None


class Detokenize(msgspec.Struct):
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Grammar:
    """One way to constrain the answer."""

    kind: Literal["regex", "json", "tools"]
    value: Any


@dataclass(frozen=True, slots=True)
class Wanted:
    """One checked request, chat or completion."""

    common: Common
    max_tokens: int | None
    log_probs: bool
    top: int
    grammar: Grammar | None
    parse_tools: bool = False
    stops: list[str] = field(default_factory=list)


def parse(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        where = str(error).partition("`$.")[2].rstrip("`") or None
        raise Refused(str(error), where) from error
    except msgspec.DecodeError as error:
        raise Refused(f"the body is not JSON: {error}") from error


def check(request: Chat | Completion) -> Wanted:
    for name, fine in NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and value not in fine:
            raise Refused(f"{name}={value!r} is not supported by the embedded policy server: only {fine[0]!r} is", name)
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if "" in stops:
        raise Refused("stop must not hold an empty string", "stop")
    grammar = _grammar(request)
    if isinstance(request, Completion):
        if request.stream and request.prompt_logprobs is not None:
            raise Refused("prompt_logprobs are not given in streams", "prompt_logprobs")
        wants = request.logprobs is not None
        return Wanted(request, request.max_tokens or 16, wants, request.logprobs or 0, grammar, stops=stops)
    if request.prompt_logprobs is not None:
        raise Refused("prompt_logprobs are given by /v1/completions only", "prompt_logprobs")
    if request.top_logprobs and not request.logprobs:
        raise Refused("top_logprobs needs logprobs=true", "top_logprobs")
    forced = _forced(request)
    if forced is not None and grammar is not None:
        raise Refused("tool_choice cannot force a call under another grammar", "tool_choice")
    return Wanted(
        request,
        request.max_completion_tokens or request.max_tokens,
        bool(request.logprobs),
        request.top_logprobs or 0,
        forced or grammar,
        parse_tools=bool(request.tools) and request.tool_choice != "none",
        stops=stops,
    )


def _grammar(request: Common) -> Grammar | None:
    found: list[Grammar] = []
    if request.structured_outputs:
        if request.structured_outputs.regex is not None:
            found.append(Grammar("regex", request.structured_outputs.regex))
        if request.structured_outputs.json is not None:
            found.append(Grammar("json", request.structured_outputs.json))
        if not found:
            raise Refused("structured_outputs needs regex or json", "structured_outputs")
    form = request.response_format
    if form and form.type == "json_object":
        found.append(Grammar("json", {"type": "object"}))
    if form and form.type == "json_schema":
        if form.json_schema is None or form.json_schema.schema is None:
            raise Refused("response_format.json_schema.schema is missing", "response_format")
        found.append(Grammar("json", form.json_schema.schema))
    if len(found) > 1:
        raise Refused("more than one grammar was given", "structured_outputs")
    return found[0] if found else None


def _forced(request: Chat) -> Grammar | None:
    """The tools one of which must be called, if any must."""
    tools = request.tools or []
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise Refused("a tool is {'type': 'function', 'function': {'name': ...}}", f"tools[{at}]")
    choice = request.tool_choice
    if choice in (None, "auto", "none"):
        return None
    if not tools:
        raise Refused("tool_choice needs tools", "tool_choice")
    if choice == "required":
        return Grammar("tools", tools)
    name = (choice.get("function") or {}).get("name") if isinstance(choice, dict) else None
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        raise Refused(f"tool_choice {choice!r} is not auto, none, required or one of the tools", "tool_choice")
    return Grammar("tools", named)


def plain(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as the template takes them: content as one string, calls as name and JSON text of arguments."""
    return [
        {
            "role": "system" if message.role == "developer" else message.role,
            "content": _content(message, f"messages[{at}]"),
            "tool_calls": [_call(call.function) for call in message.tool_calls or []],
        }
        for at, message in enumerate(messages)
    ]


def _content(message: Message, where: str) -> str:
    if not isinstance(message.content, list):
        return message.content or ""
    for part in message.content:
        if part.text is None:
            raise Refused(f"content part of type {part.type!r}: the model takes text only", f"{where}.content")
    return "\n".join(part.text or "" for part in message.content)


def _call(function: Function) -> dict[str, str]:
    arguments = function.arguments
    # text goes in as it came, even if it is no JSON: it may be what the model wrote
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"name": function.name, "arguments": text or "{}"}
