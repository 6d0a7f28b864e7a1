"""Answers that try to make a byte search cut the wrong bytes, each with what a harness must get of it.

Owns the seeded documents. The one non-obvious fact: what must be left is never computed from what is sent; both are
written from one description, once with what we asked for and once with the null that stands there unasked.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Final

TRAPS: Final = (
    *('"token_ids":[1,2]', '{"prompt_token_ids":[1,2,3],"x":"', '"logprobs":{"content":[{"token":"', '"logprobs":null'),
    *(
        '","token_ids":[',
        '\\"token_ids\\":[7]',
        "ends in token_ids",
        'ends in "token_ids',
        'ends in \\"prompt_token_ids',
    ),
    *("]},", "}]}", "]", '"', "\\", "\\\\", '\\"', "\n\t", "\u2028", "漢字🎉", "data: [DONE]\n\n", "plain words "),
)
STYLES: Final[tuple[dict[str, Any], ...]] = (
    {"separators": (",", ":"), "ensure_ascii": False},
    {"separators": (",", ":")},
    {},
)


@dataclass(frozen=True, slots=True)
class Pair:
    """What the policy server sends, and what the harness must get."""

    sent: bytes
    left: bytes


class Adversary:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def whole(self) -> Pair:
        """A whole body."""
        head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": "bench"}
        choices = [self._choice({"message": self._said(), "finish_reason": "stop"}, i) for i in range(self._count(2))]
        usage = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
        more = {"usage": usage, "prompt_logprobs": None, "kv_transfer_params": None, "note": self._text()}
        style = self._random.choice(STYLES)
        return Pair(*(json.dumps(d, **style).encode() for d in self._document(head | more, choices, prompt=True)))

    def stream(self, events: int) -> Pair:
        """A stream of so many chunks, its finish and a usage chunk that nobody asked for."""
        sent, left = b"", b""
        for number in range(events):
            asks_only = number and self._random.random() < 0.1
            delta = {} if asks_only else {"content": self._text() or "x", "nested": self._nested()}
            pair = self._chunk({"delta": delta, "finish_reason": None}, prompt=not number)
            sent += pair.sent
            left += b"" if asks_only else pair.left
        last = self._chunk({"delta": {"content": self._text()}, "finish_reason": "stop"}, prompt=False)
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}}
        done = b"data: [DONE]\n\n"
        return Pair(sent + last.sent + _event(json.dumps({"id": "c", **usage})) + done, left + last.left + done)

    def _chunk(self, said: dict[str, Any], *, prompt: bool) -> Pair:
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "bench", "note": self._text()}
        style = self._random.choice(STYLES)
        sent, left = self._document(head, [self._choice(said, 0)], prompt=prompt)
        return Pair(_event(json.dumps(sent, **style)), _event(json.dumps(left, **style)))

    def _document(
        self, members: dict[str, Any], choices: list[tuple[dict[str, Any], dict[str, Any]]], *, prompt: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The same members in one random order, as sent and as left."""
        ids = self._ids(3000) if prompt else None
        sent = members | {"choices": [each[0] for each in choices], "prompt_token_ids": ids}
        left = members | {"choices": [each[1] for each in choices], "prompt_token_ids": None}
        return self._shuffled(sent, left)

    def _choice(self, said: dict[str, Any], index: int) -> tuple[dict[str, Any], dict[str, Any]]:
        ids = self._ids(6)
        entries = [
            {"token": self._text(), "logprob": -self._random.random(), "bytes": self._ids(4), "top_logprobs": []}
            for _ in ids
        ]
        sent = {**said, "index": index, "logprobs": {"content": entries}, "token_ids": ids}
        return self._shuffled(sent, sent | {"logprobs": None, "token_ids": None})

    def _shuffled(self, sent: dict[str, Any], left: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        names = list(sent)
        self._random.shuffle(names)
        return {name: sent[name] for name in names}, {name: left[name] for name in names}

    def _said(self) -> dict[str, Any]:
        arguments = json.dumps({"command": self._text(), "token_ids": self._ids(3)})
        call = {"id": "call", "type": "function", "function": {"name": "f", "arguments": arguments}}
        said = {"role": "assistant", "content": self._text(), "reasoning": self._text(), "tool_calls": [call]}
        return said | {"nested": self._nested()}

    def _nested(self) -> dict[str, Any]:
        """Members of our names where they are none of ours."""
        return {"token_ids": self._ids(4), "logprobs": {"content": self._text()}, "prompt_token_ids": [self._text()]}

    def _text(self) -> str:
        return "".join(self._random.choice(TRAPS) for _ in range(self._random.randrange(5)))

    def _ids(self, most: int) -> list[int]:
        """Mostly few; sometimes as many as there may be."""
        count = self._random.randrange(most) if self._random.random() < 0.2 else self._random.randrange(1, 4)
        return [self._random.randrange(151_643) for _ in range(count)]

    def _count(self, most: int) -> int:
        return self._random.randrange(1, most + 1)


def _event(document: str) -> bytes:
    return f"data: {document}\n\n".encode()
