"""The engine's count is found without reading the answer, and is never taken from text."""

from __future__ import annotations

import json

import pytest

from forge.proxy.engines.usage import counted

USAGE = {"prompt_tokens": 7, "total_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}


def stream(*chunks: dict[str, object]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n" for chunk in chunks)


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps({"choices": [], "usage": USAGE, "prompt_token_ids": [1] * 9}, separators=(",", ":")).encode(),
        json.dumps({"usage": USAGE, "choices": [{"message": {"content": '{"usage":{"prompt_tokens":1'}}]}).encode(),
        stream({"usage": USAGE | {"completion_tokens": 1}}, {"usage": USAGE}, {"usage": None}) + b"data: [DONE]\n\n",
    ],
    ids=["whole", "quoted", "so far in every chunk"],
)
def test_the_last_count_is_taken(answer: bytes) -> None:
    assert counted(answer) == (7, 3)
    assert counted(bytearray(answer)) == (7, 3)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        stream({"choices": [{"delta": {"content": '"usage":{"prompt_tokens":1,"completion_tokens":1}'}}]}),
        stream({"usage": None}),
        b'{"usage":{"prompt_tokens":1}}',
        b'{"usage":{"prompt_tokens":1,"completion_tokens":',
        b'{"usage":[[[[[[[[[[[}}}}}}}}}}}}',
    ],
)
def test_what_is_no_count_is_none(answer: bytes) -> None:
    assert counted(answer) is None
