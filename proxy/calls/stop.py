"""A budget is used up: the harness gets an ordinary, finished answer that says so, in its own dialect.

Made as the engine would write it and put through the dialect, so every format comes out right. Never a row: no
policy said it.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from forge.proxy.dialects.base import COMPLETIONS_PATH, Dialect, Outgoing
from forge.proxy.door.request import Request
from forge.proxy.engines.base import Engine


def clean_stop(
    request: Request, dialect: Dialect, outgoing: Outgoing, *, engine: Engine, call_id: str, budget: str
) -> None:
    """Answers the request."""
    created = int(time.time())
    answer = dialect.answer(outgoing, engine=engine, call_id=call_id, created=created)
    text = f"The session's budget of {budget} is used up; it ends here."
    choices = range(outgoing.choices)
    head = {"id": f"chatcmpl-{call_id}", "created": created, "model": outgoing.model_requested or "policy"}
    if outgoing.path == COMPLETIONS_PATH:
        made = _raw(head, text, choices, stream=outgoing.stream)
    else:
        made = _stream(head, text, choices) if outgoing.stream else _whole(head, text, choices)
    pieces = [*answer.feed(made), *answer.finish()]
    kind = dialect.content_type_stream if outgoing.stream else "application/json"
    request.outlet.answer(200, b"".join(piece.data for piece in pieces), {"Content-Type": kind})


def _usage() -> dict[str, int]:
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def _whole(head: dict[str, Any], text: str, choices: range) -> bytes:
    said = {"message": {"role": "assistant", "content": text}, "logprobs": None, "finish_reason": "stop"}
    made = [{"index": index} | said for index in choices]
    return msgspec.json.encode(head | {"object": "chat.completion", "choices": made, "usage": _usage()})


def _raw(head: dict[str, Any], text: str, choices: range, *, stream: bool) -> bytes:
    made = [{"index": index, "text": text, "logprobs": None, "finish_reason": "stop"} for index in choices]
    document = msgspec.json.encode(head | {"object": "text_completion", "choices": made, "usage": _usage()})
    return b"data: " + document + b"\n\ndata: [DONE]\n\n" if stream else document


def _stream(head: dict[str, Any], text: str, choices: range) -> bytes:
    head = head | {"object": "chat.completion.chunk"}
    deltas: list[tuple[dict[str, str], str | None]] = [
        ({"role": "assistant", "content": ""}, None),
        ({"content": text}, None),
    ]
    events = [
        head | {"choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}]}
        for delta, finish in [*deltas, ({}, "stop")]
        for index in choices
    ]
    events.append(head | {"choices": [], "usage": _usage()})
    return b"".join(b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"
