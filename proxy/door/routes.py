"""Which path means what on the data plane; pure.

The route decides the dialect. Paths work with and without a version, under ``/s/<session id>/``, and with the mistakes
that people make in a base URL (an endpoint pasted twice). Everything is decided on the raw path: nothing here
authorises, keys do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qs, unquote

from forge.proxy.dialects import GEMINI_ARRAY
from forge.proxy.dialects.base import NO_TARGET, Target
from forge.proxy.door.keys import SESSION_ID


class Kind(StrEnum):
    CALL = "call"
    COUNT = "count"
    """How many tokens a request's prompt has; no call."""
    MODELS = "models"
    PROBE = "probe"
    """Harnesses ask it to see who is there; answered cheaply, never recorded."""
    DROP = "drop"
    """Harness telemetry: accepted and forgotten."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Route:
    kind: Kind
    dialect: str = "chat"
    """Whose error shape to use, and for calls the wire format."""
    session_id: str | None = None
    """The session that the path names; its key opens it."""
    probe: str = ""
    """Which probe; for models, which one is asked for (empty: all)."""
    target: Target = NO_TARGET


CALLS: Final[dict[str, str]] = {
    "chat/completions": "chat",
    "responses": "responses",
    "completions": "completions",
    "messages": "messages",
}
"""Path after the optional ``v1`` to dialect."""

COUNTS: Final[dict[str, str]] = {"messages/count_tokens": "messages"}
"""The same of paths that count tokens."""

PROBES: Final = frozenset({"", "api/hello", "version", "api/version", "health", "ping"})
DROPS: Final = (
    "api/event_logging",
    "api/claude_code",
    "api/claude_cli",
    "codex/analytics-events",
    "analytics-events",
    "telemetry",
    "v1/traces",
    "v1/metrics",
    "v1/logs",
)
"""Telemetry of harnesses and of OpenTelemetry: these paths and all below them."""
MODELS: Final = "models"
VERSION: Final = re.compile(r"v1(?:(?:alpha|beta)\d*)?")
PATHS: Final = 4096
"""Paths whose meaning is remembered."""
GEMINI: Final = "gemini"
GOOGLE: Final = re.compile(
    r"(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?(?:models|tunedModels)/(?:models/)*"
    r"(?P<model>.+):(?P<method>generateContent|streamGenerateContent|countTokens)"
)
"""Google's resource names: the model, which may have slashes of its own, and what to do with it."""


@lru_cache(maxsize=PATHS)
def route(path: str, query: str = "") -> Route:
    """``path`` and ``query`` as they came."""
    parts = [part for part in path.split("/") if part]
    session_id: str | None = None
    if len(parts) >= 2 and parts[0] == "s":
        if not SESSION_ID.fullmatch(parts[1]):
            return Route(Kind.UNKNOWN)
        session_id, parts = parts[1], parts[2:]
    if any("/".join([*parts, ""]).startswith(f"{drop}/") for drop in DROPS):
        return Route(Kind.DROP, session_id=session_id)
    dialect = GEMINI if parts and VERSION.fullmatch(parts[0]) and parts[0] != "v1" else "chat"
    parts = _bare(parts)
    tail = "/".join(parts)
    if tail in PROBES:
        return Route(Kind.PROBE, session_id=session_id, probe=tail)
    if (found := GOOGLE.fullmatch(unquote(tail))) is not None:
        return _google(found["model"], found["method"], query, session_id)
    if tail in CALLS:
        return Route(Kind.CALL, CALLS[tail], session_id)
    if tail in COUNTS:
        return Route(Kind.COUNT, COUNTS[tail], session_id)
    if parts[:1] == [MODELS]:
        return Route(Kind.MODELS, dialect, session_id, probe=unquote("/".join(parts[1:])))
    return Route(Kind.UNKNOWN, CALLS.get(parts[0], dialect) if parts else dialect, session_id)


def _bare(parts: list[str]) -> list[str]:
    """Without the version, and without a call's whole path where a client has put another one behind it."""
    while True:
        if parts and VERSION.fullmatch(parts[0]):
            parts = parts[1:]
            continue
        ends = [end.split("/") for end in CALLS]
        doubled = next((len(end) for end in ends if len(parts) > len(end) and parts[: len(end)] == end), 0)
        if not doubled or not _known(parts[doubled:]):
            return parts
        parts = parts[doubled:]


def _known(parts: list[str]) -> bool:
    return parts[0] == MODELS or VERSION.fullmatch(parts[0]) is not None or "/".join(parts) in CALLS | COUNTS


def _google(model: str, method: str, query: str, session_id: str | None) -> Route:
    if method == "countTokens":
        return Route(Kind.COUNT, GEMINI, session_id, target=Target(model))
    stream = method == "streamGenerateContent"
    asked = parse_qs(query)
    events = "sse" in [*asked.get("alt", ()), *asked.get("$alt", ())]
    return Route(Kind.CALL, GEMINI_ARRAY if stream and not events else GEMINI, session_id, target=Target(model, stream))
