"""One small request in each wire format, and what its streamed answer says: for tests of what all formats share."""

from __future__ import annotations

import json
from typing import Any

from tests.proxy.wire import documents

WIRES = ("chat", "responses", "messages", "gemini")
TOOL = {"type": "object", "properties": {"a": {"type": "string"}}}
TEXT = "hello"


def request(wire: str, stream: bool, *, tools: bool = False) -> tuple[str, dict[str, Any]]:
    """The path after the root, and the body. The tool, if any, is called ``run``."""
    user = {"role": "user", "content": TEXT}
    named = {"name": "run", "description": "", "parameters": TOOL}
    body: dict[str, Any]
    if wire == "gemini":
        body = {"contents": [{"role": "user", "parts": [{"text": TEXT}]}]}
        body |= {"tools": [{"functionDeclarations": [named]}]} if tools else {}
        return f"/v1beta/models/policy:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}", body
    if wire == "messages":
        body = {"messages": [user], "max_tokens": 1000}
        tool: dict[str, Any] = {"name": "run", "input_schema": TOOL}
    elif wire == "responses":
        body = {"input": [user]}
        tool = {"type": "function", **named}
    else:
        body = {"messages": [user]}
        tool = {"type": "function", "function": named}
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}[wire]
    return path, {"model": "policy", "stream": stream, **body} | ({"tools": [tool]} if tools else {})


def spoken(wire: str, body: bytes) -> tuple[str, Any]:
    """The text and the arguments of the one tool call (None without one) of a streamed answer."""
    text, arguments = "", ""
    for event in documents(body):
        if wire == "gemini":
            for part in event.get("candidates", [{}])[0].get("content", {}).get("parts", ()):
                text += part.get("text", "")
                if "functionCall" in part:
                    return text, part["functionCall"]["args"]
        elif wire == "messages":
            delta = event.get("delta", {})
            text += delta.get("text", "")
            arguments += delta.get("partial_json", "")
        elif wire == "responses":
            text += event["delta"] if event["type"] == "response.output_text.delta" else ""
            arguments += event["delta"] if event["type"] == "response.function_call_arguments.delta" else ""
        else:
            for choice in event.get("choices") or ():
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or ():
                    arguments += call["function"].get("arguments") or ""
    return text, json.loads(arguments) if arguments else None


def failed(wire: str, body: bytes) -> bool:
    """Whether the stream's last event is this format's error."""
    if wire == "gemini":  # its SDKs look for an error that is no event
        return b'"error":' in body.rpartition(b"\n\n{")[2] + body.rpartition(b"data: ")[2]
    last = documents(body)[-1]
    kinds = {"responses": ("response.failed", "error"), "messages": ("error",)}
    return last.get("type") in kinds[wire] if wire in kinds else "error" in last
