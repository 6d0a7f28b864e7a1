"""Going on with a chat completion that vLLM gave up: render, generate, derender (its ``--enable-scale-out`` routes).

Rendering gives the prompt's ids again, which must be the same, and every sampling parameter as the server resolves it,
the limit included; generating takes ids; derendering is the server's own parser over all ids. The non-obvious facts
(0.32, tried): a derendered text keeps the token that ended it, which chat leaves out; a whole one calls the end of a
call of a tool ``stop``; and a stream's derenderer writes a call's arguments as they were sampled, a whole one anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.engines.base import Continuing, GivenUp, Question, Rest
from forge.proxy.engines.going_on import ABORT, Part, check_carries, limits, mended, part_of
from forge.proxy.engines.rest import said
from forge.proxy.engines.shapes import decode_object

CHAT_PATH: Final = "/v1/chat/completions"
TOKEN_IN: Final = "/inference/v1/generate"
UNSAID_LIMIT: Final = 16
"""A rendered request leaves out what is the default of vLLM's own parameters, this limit too; generating then takes it
for none."""


def chat(body: bytes, so_far: GivenUp) -> Continuing:
    rendered = decode_object((yield Question(f"{CHAT_PATH}/render", body)))
    if rendered["token_ids"] != so_far.prompt_ids:
        raise ValueError("the prompt is rendered otherwise now")
    params = {"max_tokens": UNSAID_LIMIT} | rendered["sampling_params"]
    check_carries(params)
    asked = rendered | {
        "token_ids": so_far.prompt_ids + so_far.output_ids,
        "sampling_params": params | limits(params, so_far),
        "output_mode": "text",
        "stream": True,
        "stream_options": None,
    }
    found = said((yield Question(TOKEN_IN, msgspec.json.encode(asked), samples=True)))
    request = splice.members(body)
    tops = msgspec.json.decode(request.get("top_logprobs", b"null")) or 0
    for entry in found.log_probs:
        entry["top_logprobs"] = entry["top_logprobs"][:tops]
    if found.finish_reason == ABORT:
        return Rest(found.ids, found.log_probs, ABORT)
    yield from mended(so_far, found, rendered.get("model"))
    part = part_of(found, so_far, params, found.end.get("stop_reason"))
    included = bool(params.get("include_stop_str_in_output"))
    spoken = so_far.output_ids + (part.ids if included else part.spoken)
    message = {"role": "assistant", "content": ""}
    if spoken:
        answer = decode_object((yield _derender(body, so_far, spoken, part)))
        message = _streamed(answer) if so_far.stream else answer["choices"][0]["message"]
    message = _without_end(message, part.over)
    finish = "tool_calls" if message.get("tool_calls") and part.finish_reason == "stop" else part.finish_reason
    return Rest(part.ids, part.log_probs, finish, {"stop_reason": part.stop}, message)


def _derender(body: bytes, so_far: GivenUp, spoken: list[int], part: Part) -> Question:
    choice = {"index": 0, "token_ids": spoken, "finish_reason": part.finish_reason, "stop_reason": part.stop}
    whole = {"request_id": so_far.id, "choices": [choice]}
    asked: dict[str, Any] = {"stream": so_far.stream, "prompt_token_ids": so_far.prompt_ids, "chat_request": Raw(body)}
    if so_far.stream:
        asked["generate_chunk"] = whole
    else:
        asked["generate_response"] = whole | {"prompt_token_ids": so_far.prompt_ids}
    return Question(f"{CHAT_PATH}/derender", msgspec.json.encode(asked))


def _streamed(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The message that one chunk of everything is the delta of."""
    delta = answer["chunk"]["choices"][0]["delta"]
    calls: dict[int, dict[str, Any]] = {}
    for part in delta.get("tool_calls") or ():
        call = calls.setdefault(part["index"], {"id": part["id"], "function": {"name": "", "arguments": ""}})
        for name in ("name", "arguments"):
            call["function"][name] += part["function"].get(name) or ""
    message = {name: delta.get(name) for name in ("role", "content", "reasoning")}
    return message | {"tool_calls": [calls[index] for index in sorted(calls)]}


def _without_end(message: dict[str, Any], over: str) -> dict[str, Any]:
    """Less what a stop string takes away. Raises ``ValueError`` where that lies in a call of a tool."""
    if not over:
        return message
    name = "content" if message.get("content") else "reasoning"
    text = message.get(name) or ""
    if message.get("tool_calls") or not text.endswith(over):
        raise ValueError("the stop string that ended it cannot be found")
    return message | {name: text.removesuffix(over)}
