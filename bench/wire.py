"""Bodies as harnesses send them and as vLLM 0.32 answers them, asked for ids and log probabilities.

Owns the shapes: which members there are and how they are written. It must not know who is measured. The one non-obvious
fact: "~bench:NAME:ARG~" at the end of the last message tells the stub which answer to give (see ``c/stub.c``).
"""

from __future__ import annotations

import json
from typing import Any

from bench.words import Ids, LogProbs, Words

MODEL = "bench"
STAMP = "@@" + "0" * 20
"""In a streamed token's text: becomes the time it was sent."""
TURN_TOKENS = 1500
NUMBER = "call-0000000000"
"""In a request: becomes the number of the call, so that no two are the same."""
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def mark(name: str, arg: int = 0) -> str:
    return f" ~bench:{name}:{arg}~"


def history(words: Words, tokens: int) -> list[dict[str, Any]]:
    """Messages of about so many tokens: a system prompt, then turns."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": words.text(words.ids(min(tokens, TURN_TOKENS)))},
    ]
    for at in range(TURN_TOKENS, tokens, TURN_TOKENS):
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": words.text(words.ids(min(TURN_TOKENS, tokens - at)))})
    return messages


def chat_request(messages: list[dict[str, Any]], answer: str, *, stream: bool = False) -> bytes:
    """``answer``: a mark."""
    last = {"role": "user", "content": NUMBER + answer}
    body: dict[str, Any] = {"model": MODEL, "messages": [*messages, last], "temperature": 1.0, "max_tokens": 4096}
    return encode(body | ({"stream": True} if stream else {}))


def responses_request(messages: list[dict[str, Any]], answer: str) -> bytes:
    """The same conversation as the OpenAI Responses API has it, streamed."""
    items = [
        {
            "type": "message",
            "role": message["role"],
            "content": [
                {
                    "type": "output_text" if message["role"] == "assistant" else "input_text",
                    "text": message["content"],
                }
            ],
        }
        for message in [*messages[1:], {"role": "user", "content": NUMBER + answer}]
    ]
    body = {"model": MODEL, "instructions": messages[0]["content"], "input": items, "stream": True, "store": False}
    return encode(body | {"temperature": 1.0, "max_output_tokens": 4096})


def messages_request(messages: list[dict[str, Any]], answer: str) -> bytes:
    """The same as the Anthropic Messages API has it, streamed."""
    turns = [*messages[1:], {"role": "user", "content": NUMBER + answer}]
    body = {"model": MODEL, "max_tokens": 4096, "temperature": 1.0, "system": messages[0]["content"]}
    return encode(body | {"messages": turns, "stream": True})


def answer(words: Words, prompt: Ids, output: Ids, log_probs: LogProbs, number: int = 0) -> bytes:
    """A whole chat completion. ``number`` makes its id unique."""
    entries = [_entry(words.pieces[i], p) for i, p in zip(output.tolist(), log_probs.tolist(), strict=True)]
    message: dict[str, Any] = {"role": "assistant", "content": words.text(output), "refusal": None}
    message |= {"annotations": None, "audio": None, "function_call": None, "tool_calls": [], "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}
    choice |= {"stop_reason": None, "token_ids": output.tolist()}
    body = {**_head(number, "chat.completion"), "choices": [choice], "service_tier": None, "system_fingerprint": None}
    body |= {"usage": _usage(len(prompt), len(output)), "prompt_logprobs": None}
    return encode(body | {"prompt_token_ids": prompt.tolist(), "kv_transfer_params": None})


def stream(words: Words, prompt: Ids, output: Ids, log_probs: LogProbs) -> bytes:
    """The same as events, one for each token; the text of each is a stamp."""
    events = [_chunk({"role": "assistant", "content": ""}, [], [], {"prompt_token_ids": prompt.tolist()})]
    for i, p in zip(output.tolist(), log_probs.tolist(), strict=True):
        events.append(_chunk({"content": STAMP}, [_entry(STAMP, p)], [i]))
    events.append(_chunk({"content": ""}, [], [], finish="stop"))
    events.append({**_head(0, "chat.completion.chunk"), "choices": [], "usage": _usage(len(prompt), len(output))})
    return b"".join(b"data: " + encode(event) + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def _chunk(
    delta: dict[str, Any],
    entries: list[dict[str, Any]],
    ids: list[int],
    more: dict[str, Any] | None = None,
    finish: str | None = None,
) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": {"content": entries} if entries else None}
    choice |= {"finish_reason": finish, "token_ids": ids or None}
    return {**_head(0, "chat.completion.chunk"), "choices": [choice], **(more or {})}


def _entry(text: str, log_prob: float) -> dict[str, Any]:
    return {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}


def _head(number: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number:032x}", "object": kind, "created": 1790000000, "model": MODEL}


def _usage(prompt: int, output: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
