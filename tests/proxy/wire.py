"""Helpers for tests of wire formats: run an answer through a dialect, and read what comes out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import NO_TARGET, Answer, Hold, Outgoing, Overrides, Piece, Target
from forge.proxy.engines import ENGINES
from forge.proxy.sse import Event, Splitter

CALL_ID = "c0123456789abcdefghijklmnop"
USER = {"role": "user", "content": "hi"}


def send(
    dialect: str,
    request: dict[str, Any] | bytes,
    *,
    engine: str = "vllm",
    overrides: Overrides | None = None,
    target: Target = NO_TARGET,
) -> Outgoing:
    body = request if isinstance(request, bytes) else json.dumps(request).encode()
    return DIALECTS[dialect].request(
        body, engine=ENGINES[engine], overrides=overrides or Overrides(), call_id=CALL_ID, target=target
    )


def answer(dialect: str, outgoing: Outgoing, *, engine: str = "vllm") -> Answer:
    return DIALECTS[dialect].answer(outgoing, engine=ENGINES[engine], call_id=CALL_ID, created=1700000000)


def run(answer: Answer, body: bytes, *, cut: int = 1 << 30) -> list[Piece]:
    """All pieces; holds only ever tighten to CLOSE and stay there."""
    pieces: list[Piece] = []
    for at in range(0, len(body), cut):
        pieces += answer.feed(body[at : at + cut])
    pieces += answer.finish()
    closing = [piece.hold is Hold.CLOSE for piece in pieces]
    assert closing == sorted(closing), "a piece after the closing one is not held"
    return pieces


def text(pieces: Sequence[Piece]) -> bytes:
    return b"".join(piece.data for piece in pieces)


def events(body: bytes) -> list[Event]:
    splitter = Splitter()
    found = splitter.feed(body)
    assert splitter.rest == b""
    return [event for event in found if event.data is not None]


def documents(body: bytes) -> list[Any]:
    return [json.loads(event.data) for event in events(body) if event.data and event.data != b"[DONE]"]


def stream(*chunks: dict[str, Any], done: bool = True) -> bytes:
    """Chat events of these documents."""
    parts = [b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks]
    return b"".join(parts) + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **members: Any) -> dict[str, Any]:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return head | {"choices": [choice | members]}


def usage_chunk(prompt: int = 3, output: int = 2, **members: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "policy"}
    return head | {"choices": [], "usage": usage} | members
