"""Going on with a chat completion that SGLang gave up: its chat route takes ids in place of the template's.

The server resolves every sampling parameter as it did before; the text comes back as it is sampled, and the server's
own parsers take it apart, all of it. The non-obvious facts (read in 0.5.23's source): older servers ignore
``input_ids``, which their answer's own prompt ids show; and its parsers' routes want to be told their names, which
``/server_info`` tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Mapping
from typing import Any, Final

import msgspec

from forge.proxy import splice
from forge.proxy.engines.base import Continuing, GivenUp, Question, Rest
from forge.proxy.engines.going_on import ABORT, DETOKENIZE, check_carries, limits, part_of
from forge.proxy.engines.rest import said
from forge.proxy.engines.shapes import decode_object

CHAT_PATH: Final = "/v1/chat/completions"
RAW_TEXT: Final[dict[str, Any]] = {
    "tool_choice": "none",
    "separate_reasoning": False,
    "stream": True,
    "stream_options": None,
    "return_input_ids_in_sglext": True,
    "return_output_ids_in_sglext": True,
}


def chat(body: bytes, so_far: GivenUp) -> Continuing:
    request = {name: msgspec.json.decode(value) for name, value in splice.members(body).items()}
    check_carries(request)
    if request.get("repetition_penalty", 1.0) != 1.0 or has_media(request["messages"]):
        raise ValueError("penalties and media cannot be carried over")
    ids = so_far.prompt_ids + so_far.output_ids
    asked = request | RAW_TEXT | limits(request, so_far) | {"input_ids": ids}
    found = said((yield Question(CHAT_PATH, msgspec.json.encode(asked), samples=True)))
    if found.prompt_ids != ids:
        raise ValueError("it went on from other ids")
    if found.finish_reason == ABORT:
        return Rest(found.ids, found.log_probs, ABORT)
    part = part_of(found, so_far, request, found.end.get("matched_stop"))
    kept = part.ids if request.get("no_stop_trim") else part.spoken
    parsers = _parsers(decode_object((yield Question("/server_info"))), request)
    skip = not parsers and request.get("skip_special_tokens", True)
    tokens = {"tokens": so_far.output_ids + kept, "skip_special_tokens": skip}
    text = decode_object((yield Question(DETOKENIZE, msgspec.json.encode(tokens))))["text"]
    if not text.endswith(part.over):
        raise ValueError("the stop string that ended it cannot be found")
    message = yield from _parsed(text[: len(text) - len(part.over)], parsers, request, so_far.id)
    finish = "tool_calls" if message.get("tool_calls") and part.finish_reason == "stop" else part.finish_reason
    return Rest(part.ids, part.log_probs, finish, {"matched_stop": part.stop}, message)


def has_media(messages: list[dict[str, Any]]) -> bool:
    parts = [part for message in messages for part in message.get("content") or () if isinstance(part, dict)]
    return any(part.get("type") != "text" for part in parts)


def _parsers(server: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, str]:
    """The names of those that the server runs over this answer."""
    used = {
        "reasoning_parser": request.get("separate_reasoning", True),
        "tool_call_parser": request.get("tools") and request.get("tool_choice") != "none",
    }
    return {name: server[name] for name, runs in used.items() if runs and server.get(name)}


def _parsed(
    text: str, parsers: Mapping[str, str], request: Mapping[str, Any], id: str
) -> Generator[Question, bytes, dict[str, Any]]:
    """The message, as the server's parsers read the text."""
    message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
    if parser := parsers.get("reasoning_parser"):
        asked = {"text": text, "reasoning_parser": parser}
        answer = decode_object((yield Question("/separate_reasoning", msgspec.json.encode(asked))))
        message |= {"reasoning_content": answer["reasoning_text"] or None, "content": answer["text"] or ""}
    if parser := parsers.get("tool_call_parser"):
        asked = {"text": message["content"], "tools": request["tools"], "tool_call_parser": parser}
        answer = decode_object((yield Question("/parse_function_call", msgspec.json.encode(asked))))
        if answer["calls"]:
            calls = [_call(place, call, id) for place, call in enumerate(answer["calls"])]
            message |= {"content": answer["normal_text"] or "", "tool_calls": calls}
    return message


def _call(place: int, call: Mapping[str, Any], id: str) -> dict[str, Any]:
    name = hashlib.blake2b(f"{id}/{place}".encode(), digest_size=12).hexdigest()
    function = {"name": call["name"], "arguments": call["parameters"]}
    return {"id": f"call_{name}", "type": "function", "index": place, "function": function}
