"""The whole of a Gemini request as a chat request: contents, tools, and how tokens are sampled.

Owns which members mean something to an engine; those that only steer a vendor's own service (safety settings, labels)
are accepted and go no further, and those that would change the answer leave a notice. The one non-obvious fact:
neither the model nor the wish for a stream stands in the body: both are in the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.base import BadRequest, Target
from forge.proxy.dialects.gemini_contents import History
from forge.proxy.dialects.gemini_node import Node
from forge.proxy.dialects.gemini_schema import json_schema
from forge.proxy.dialects.gemini_tools import translate_tools

WRAPPED: Final = "generateContentRequest"
"""What a request to count tokens may hold in place of contents."""
RENAMED: Final = {
    "temperature": "temperature",
    "topP": "top_p",
    "topK": "top_k",
    "maxOutputTokens": "max_tokens",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
}
"""Members of ``generationConfig`` that chat knows by other names."""
WHOLE: Final = frozenset({"topK", "maxOutputTokens", "seed"})
"""Whole numbers, which some clients write as 64.0."""
LEVELS: Final = {"MINIMAL": "minimal", "LOW": "low", "MEDIUM": "medium", "HIGH": "high"}
FORMAT: Final = ("responseMimeType", "responseSchema", "responseJsonSchema")
UNDERSTOOD: Final = frozenset({*RENAMED, *FORMAT, "candidateCount", "thinkingConfig", "responseModalities"})
JSON_TYPE: Final = "application/json"
ENUM_TYPE: Final = "text/x.enum"
PLAIN_TYPES: Final = (None, "text/plain")


@dataclass(frozen=True, slots=True)
class Translated:
    members: Mapping[str, bytes | Raw]
    """The chat request."""
    notices: list[Mapping[str, Any]]
    thoughts: bool
    """The harness wants to see thoughts; else they only come back to us, in signatures."""


def translate(body: bytes, target: Target) -> Translated:
    """Raises ``BadRequest``."""
    request = Node(body)
    request = request.node(WRAPPED) or request
    if "cachedContent" in request:
        raise BadRequest(
            "`cachedContent` is not supported: nothing is kept between calls; send the whole contents each time",
            code="unsupported_parameter",
            param="cachedContent",
        )
    history = _history(request)
    tools = translate_tools(request)
    notices = [*history.notices, *tools.notices]
    members: dict[str, bytes | Raw] = {}
    if target.model is not None:
        members["model"] = msgspec.json.encode(target.model)
    members["messages"] = msgspec.json.encode(history.messages)
    members |= tools.members()
    config = request.node("generationConfig") or Node(b"{}", "generationConfig")
    members |= _sampling(config, notices)
    thinking = config.node("thinkingConfig") or Node(b"{}", config.place("thinkingConfig"))
    members |= _thinking(thinking, notices)
    if target.stream:
        members["stream"] = b"true"
    return Translated(members, notices, bool(thinking.get("includeThoughts", bool)))


def _history(request: Node) -> History:
    if "contents" not in request:
        raise BadRequest("`contents` is missing", param="contents")
    history = History()
    instruction = request.raw("systemInstruction")
    if instruction is not None:
        text = bytes(instruction).startswith(b'"')
        history.system(
            request.get("systemInstruction", str) if text else Node(instruction, request.place("systemInstruction"))
        )
    if bytes(request.raw("contents") or b"").startswith(b'"'):
        history.messages.append({"role": "user", "content": request.get("contents", str)})
        return history
    for content in request.nodes("contents"):
        history.add(content)
    history.close()
    return history


def _sampling(config: Node, notices: list[Mapping[str, Any]]) -> dict[str, bytes | Raw]:
    if (config.get("candidateCount", int) or 1) > 1:
        raise BadRequest("Multiple candidates is not enabled for this model", param=config.place("candidateCount"))
    modalities = config.get("responseModalities", list[str]) or []
    notices += [{"edit": "dropped_modality", "type": kind} for kind in modalities if kind.upper() != "TEXT"]
    notices += [{"edit": "dropped_member", "name": config.place(name)} for name in config if name not in UNDERSTOOD]
    members: dict[str, bytes | Raw] = {}
    for name, known in RENAMED.items():
        value = config.raw(name)
        if value is not None:
            members[known] = _whole(config, name) if name in WHOLE else value
    return members | _format(config)


def _whole(config: Node, name: str) -> bytes:
    value: float = config.get(name, float)
    if not value.is_integer():
        raise BadRequest(f"`{config.place(name)}` must be a whole number", param=config.place(name))
    return msgspec.json.encode(int(value))


def _format(config: Node) -> dict[str, bytes | Raw]:
    kind: str | None = config.get("responseMimeType", str)
    schema: Any = config.raw("responseJsonSchema")
    if schema is None and "responseSchema" in config:
        schema = json_schema(config.get("responseSchema", Any))
    if kind == ENUM_TYPE and isinstance(schema, dict) and isinstance(schema.get("enum"), list):
        choices = [choice for choice in schema["enum"] if isinstance(choice, str)]
        return {"structured_outputs": msgspec.json.encode({"choice": choices})}
    if kind == JSON_TYPE and schema is not None:
        told = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return {"response_format": msgspec.json.encode(told)}
    if kind == JSON_TYPE:
        return {"response_format": b'{"type":"json_object"}'}
    if kind in PLAIN_TYPES:
        return {}
    place = config.place("responseMimeType")
    raise BadRequest(f"`{place}`: {kind!r} is not {JSON_TYPE}, {ENUM_TYPE} or text/plain", param=place)


def _thinking(thinking: Node, notices: list[Mapping[str, Any]]) -> dict[str, bytes | Raw]:
    """A level is chat's effort. A budget of tokens is measured against the vendor's own models: it has no like."""
    if "thinkingBudget" in thinking:
        notices.append({"edit": "dropped_member", "name": thinking.place("thinkingBudget")})
    level = (thinking.get("thinkingLevel", str) or "").upper()
    return {"reasoning_effort": msgspec.json.encode(LEVELS[level])} if level in LEVELS else {}
