"""Errors as Google's services word them: a code, a message, the status by its name.

Owns the names and the wording by which harnesses know that a prompt is too long. The engine's own message is always
kept. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from forge.proxy.dialects.engine_errors import EngineError

STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    426: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
DOMAIN: Final = "forge"
_NO_REASON: Final = re.compile(r"[^A-Z0-9]+")
_LIMIT: Final = re.compile(r"maximum (?:context|model) length (?:is|of) (\d+)|max_model_len=(\d+)", re.IGNORECASE)
_COUNT: Final = re.compile(r"(\d+) (?:input|prompt) tokens|(\d+) in the messages|prompt \(length (\d+)", re.IGNORECASE)


def error_body(status: int, *, code: str, message: str, param: str | None = None) -> bytes:
    """``code`` is ours, and stands where Google's services give their reason."""
    info: dict[str, Any] = {"@type": INFO, "reason": _NO_REASON.sub("_", code.upper()), "domain": DOMAIN}
    if param is not None:
        info["metadata"] = {"field": param}
    name = STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return msgspec.json.encode({"error": {"code": status, "message": message, "status": name, "details": [info]}})


def engine_error_body(status: int, error: EngineError) -> bytes:
    message = error.message
    if error.overflow:
        message = f"{_overflow(error.message)} {error.message}"
    return error_body(status, code=error.kind, message=message, param=error.param)


def _overflow(message: str) -> str:
    """Google's own words, with the engine's numbers where it says them."""
    count, limit = _number(_COUNT, message), _number(_LIMIT, message)
    said = f" ({count})" if count is not None else ""
    return (
        f"The input token count{said} exceeds the maximum number of tokens allowed"
        f"{f' ({limit})' if limit is not None else ''}."
    )


def _number(pattern: re.Pattern[str], message: str) -> int | None:
    found = pattern.search(message)
    return next((int(group) for group in found.groups() if group), None) if found is not None else None
