"""A whole body where a stream was due, as the events it would have been.

Some engines answer whole whatever was asked; clients that asked for a stream would wait for its first event for ever.
Chat and raw completions alike; what the body says is not touched.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forge.proxy.splice import UNREADABLE


class _WholeChoice(msgspec.Struct):
    message: dict[str, Any] | None = None
    """Of a chat completion."""
    text: str | None = None
    """Of a raw one."""
    index: int = 0
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: Any = None


class _Whole(msgspec.Struct):
    choices: list[_WholeChoice] = []
    id: str | None = None
    created: int | None = None
    model: str | None = None
    usage: Any = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


def as_stream(body: bytes) -> bytes:
    """A whole body as the events it would have been: for engines that answer whole where a stream was asked. Raises
    ``ValueError`` on a body that is no chat completion."""
    try:
        whole = msgspec.json.decode(body, type=_Whole)
    except UNREADABLE as failure:
        raise ValueError(f"not a chat completion: {failure}") from failure
    if whole.error is not None:
        return _event({"error": whole.error})
    raw = any(choice.text is not None for choice in whole.choices)
    kind = "text_completion" if raw else "chat.completion.chunk"
    head = {"id": whole.id, "object": kind, "created": whole.created, "model": whole.model}
    events: list[bytes] = []
    for choice in whole.choices:
        chunk = _raw_chunk(choice) if choice.text is not None else _chat_chunk(choice)
        rest = {} if raw else {"prompt_token_ids": whole.prompt_token_ids}
        events.append(_event(head | {"choices": [chunk]} | rest))
    if whole.usage is not None:
        events.append(_event(head | {"choices": [], "usage": whole.usage}))
    return b"".join(events) + b"data: [DONE]\n\n"


def _chat_chunk(choice: _WholeChoice) -> dict[str, Any]:
    if choice.message is None:
        raise ValueError("not a chat completion: a choice has no message")
    delta = {name: value for name, value in choice.message.items() if value is not None}
    if isinstance(calls := delta.get("tool_calls"), list):
        delta["tool_calls"] = [{"index": place} | call for place, call in enumerate(calls)]
    kept = ("index", "logprobs", "finish_reason", "stop_reason", "token_ids", "weight_versions")
    return {name: getattr(choice, name) for name in kept} | {"delta": delta}


def _raw_chunk(choice: _WholeChoice) -> dict[str, Any]:
    chunk: dict[str, Any] = msgspec.to_builtins(choice)
    del chunk["message"]
    return chunk


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
