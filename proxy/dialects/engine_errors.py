"""An engine's error answer, read for those formats that say it in a shape of their own.

Owns how engines word things; the shapes are the dialects'. The engine's own message is always kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from forge.proxy import splice
from forge.proxy.engines.answers import error_text

OVERFLOW: Final = re.compile(
    r"context.{0,12} length|max_model_len|context window|context size|too many tokens", re.IGNORECASE
)
"""How engines say that a prompt is too long."""
UNKNOWN: Final = "upstream_error"


@dataclass(frozen=True, slots=True)
class EngineError:
    message: str
    kind: str
    """The engine's own type of error."""
    param: str | None
    overflow: bool
    """The prompt does not fit into the engine's context: harnesses compact when they are told so."""


def read_error(status: int, body: bytes) -> EngineError:
    """A body in no known shape is itself the message."""
    message, kind, param = _read(body)
    return EngineError(message, kind, param, overflow=status in (400, 413, 422) and bool(OVERFLOW.search(message)))


def _read(body: bytes) -> tuple[str, str, str | None]:
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except splice.UNREADABLE:
        return body.decode("utf-8", "replace").strip(), UNKNOWN, None
    error: Any = document.get("error")
    if not isinstance(error, dict):
        return error_text(error) if error else body.decode("utf-8", "replace"), UNKNOWN, None
    kind, param = error.get("type"), error.get("param")
    return error_text(error), kind if isinstance(kind, str) else UNKNOWN, param if isinstance(param, str) else None
