"""The errors of the messages format: their shape, their types, and the words that make a harness shorten its history.

Owns how a status or an engine's error is said. The non-obvious facts: Claude Code compacts when it reads ``prompt is
too long: N tokens > M maximum``, and lowers its limit when it reads ``input length and `max_tokens` exceed context
limit``; and it takes the numbers out of these words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from forge.proxy.dialects.engine_errors import read_error

INVALID: Final = "invalid_request_error"
API: Final = "api_error"
OVERLOADED: Final = "overloaded_error"
TYPES: Final[Mapping[int, str]] = {
    400: INVALID,
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: OVERLOADED,
    504: "timeout_error",
    529: OVERLOADED,
}
RETRIED: Final = frozenset({"generation_aborted", "recorder_unavailable"})
"""Codes of ours for what may be asked again."""
_LIMIT: Final = re.compile(r"context (?:length|window)(?: is| of)?(?: only)? \(?(\d+)")
_PROMPT: Final = re.compile(
    r"(\d+) (?:input|prompt) tokens|(\d+) in the messages|(\d+) tokens from the input|input \((\d+) tokens"
)
_OUTPUT: Final = re.compile(
    r"too large: (\d+)|(\d+) in the completion|requested (\d+) output|(\d+) tokens for the completion"
)


def error_body(status: int, message: str) -> bytes:
    return _encode(TYPES.get(status, INVALID if status < 500 else API), message)


def error_event(code: str, message: str) -> bytes:
    """An error inside a stream."""
    return b"event: error\ndata: " + _encode(OVERLOADED if code in RETRIED else API, message) + b"\n\n"


def engine_error_body(status: int, body: bytes) -> bytes:
    error = read_error(status, body)
    return error_body(status, _known_words(error.message) + error.message if error.overflow else error.message)


def _known_words(message: str) -> str:
    """What harnesses look for, before the engine's own words; its numbers, or none."""
    limit, prompt, output = (_number(pattern, message) for pattern in (_LIMIT, _PROMPT, _OUTPUT))
    if limit is not None and prompt is not None and prompt > limit:
        return f"prompt is too long: {prompt} tokens > {limit} maximum. "
    if limit is not None and prompt is not None and output is not None:
        return f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {limit}. "
    return "" if "max_tokens" in message else "prompt is too long. "


def _number(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return next((int(group) for group in found.groups() if group), None) if found is not None else None


def _encode(kind: str, message: str) -> bytes:
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
