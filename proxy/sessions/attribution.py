"""Whose call is it? What harnesses say of themselves on the wire, as one data table, and how it is read.

Strongest first: our key, the path (both decided in ``server``), the harness's own session headers, body fields,
longest prefix. Of harnesses only header names and body shapes are known here, never commands or files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

VALUE_MAX: Final = 256
"""Longer ids than this are no ids."""


@dataclass(frozen=True, slots=True)
class HarnessWire:
    """One harness as the wire shows it."""

    name: str
    agent: re.Pattern[str]
    """Its User-Agent; the first group is the version."""
    names_agents: bool = False
    """Its sub-agents say who they are; of others they are told by what they say (``agents``)."""


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """A header that carries a session id."""

    name: str
    harness: str | None = None


HARNESSES: Final = (
    HarnessWire("codex", re.compile(r"codex[\w-]*/([\w.+-]+)"), names_agents=True),
    HarnessWire("claude-code", re.compile(r"claude-cli/([\w.+-]+)"), names_agents=True),
    HarnessWire("opencode", re.compile(r"opencode/([\w.+-]+)"), names_agents=True),
    HarnessWire("qwen-code", re.compile(r"QwenCode/([\w.+-]+)")),
    HarnessWire("gemini-cli", re.compile(r"GeminiCLI(?:-\w+)?/([\w.+-]+)")),
    HarnessWire("openclaw", re.compile(r"openclaw/([\w.+-]+)", re.IGNORECASE), names_agents=True),
    HarnessWire("zeroclaw", re.compile(r"zeroclaw/([\w.+-]+)", re.IGNORECASE)),
    HarnessWire("hermes", re.compile(r"HermesAgent/([\w.+-]+)")),
    HarnessWire("pi", re.compile(r"\bpi(?:-coding-agent)?/([\w.+-]+)")),
)

PARENT_HEADERS: Final = (("x-parent-session-id", "x-session-id", "opencode"),)
"""(header with the session's id, header with the sub-agent's, harness)."""
NAMES_AGENTS: Final = frozenset(wire.name for wire in HARNESSES if wire.names_agents)

SESSION_HEADERS: Final = (
    SessionHeader("x-claude-code-session-id", "claude-code"),
    SessionHeader("session-id"),
    SessionHeader("session_id"),
    SessionHeader("x-session-id"),
    SessionHeader("x-session-affinity"),
)
AGENT_HEADERS: Final = ("x-claude-code-agent-id",)
RETRY_COUNT: Final = "x-stainless-retry-count"
CODEX_METADATA: Final = "x-codex-turn-metadata"
CODEX_THREAD: Final = "thread-id"
CODEX_SUBAGENT: Final = ("x-codex-parent-thread-id", "x-openai-subagent")

STORED_HEADERS: Final = frozenset(
    {
        "user-agent",
        "content-type",
        "accept",
        "x-client-request-id",
        RETRY_COUNT,
        "x-stainless-lang",
        "x-stainless-package-version",
        "originator",
        "openai-beta",
        "anthropic-beta",
        "anthropic-version",
        "traceparent",
        CODEX_METADATA,
        "x-codex-window-id",
        CODEX_THREAD,
        *CODEX_SUBAGENT,
        *AGENT_HEADERS,
        *(header.name for header in SESSION_HEADERS),
        *(parent for parent, _, _ in PARENT_HEADERS),
    }
)
"""Request headers that reach the journal; everything else (keys, cookies) is left out."""

OPENCLAW: Final = "openclaw"
OPENCLAW_SIGN: Final = "sessionId="
OPENCLAW_SESSION: Final = re.compile(r"\bsessionId=([0-9a-fA-F-]{8,64})\b")
OPENCLAW_AGENT: Final = re.compile(r"\bsession=agent:[\w.-]+:subagent:([\w-]{1,64})")
"""Both stand on the "Runtime: ..." line of OpenClaw's first user message."""
TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""W3C ``traceparent``; OpenClaw's sub-agents share their parent's trace id."""


@dataclass(frozen=True, slots=True)
class Signs:
    """What a request says of its sender."""

    harness: str | None
    harness_version: str | None
    external_id: str | None
    """The harness's own session id."""
    rule: str
    """``header`` or ``body``: where the id stood."""
    agent_id: str | None
    turn: Mapping[str, Any]
    """Codex's turn metadata, where there is some."""
    trace: str | None = None
    """What a sub-agent without its parent's session id shares with it."""


def signs(headers: Mapping[str, str], hints: Mapping[str, Any]) -> Signs:
    """``headers``: a case-insensitive mapping. ``hints``: the body fields that the dialect picked out."""
    harness, version = _harness(headers.get("user-agent", ""))
    turn = _object(headers.get(CODEX_METADATA))
    if turn and harness is None:
        harness = "codex"
    external, agent, named = _from_headers(headers, turn)
    rule, trace = "header", None
    if external is None:
        external, rule = _from_body(hints), "body"
    first = str(hints.get("first_user") or "")
    own = OPENCLAW_SESSION.search(first) if OPENCLAW_SIGN in first else None
    if own is not None and (harness or named) in (None, OPENCLAW):
        external, named = external or own.group(1), OPENCLAW
        agent, trace = _openclaw(headers, own.string)
    return Signs(harness or named, version, _id(external), rule, _id(agent), turn, trace)


def _openclaw(headers: Mapping[str, str], text: str) -> tuple[str | None, str | None]:
    """(sub-agent id, trace id)."""
    agent = OPENCLAW_AGENT.search(text)
    trace = TRACE.fullmatch(headers.get("traceparent", ""))
    return agent.group(1) if agent else None, trace.group(1) if trace else None


def says_retry(headers: Mapping[str, str]) -> bool:
    """The client's own count of tries. A zero says nothing: Claude Code and pi try again above their SDKs."""
    return headers.get(RETRY_COUNT, "0").strip() not in ("", "0")


def stored(headers: Mapping[str, str]) -> dict[str, str]:
    """The allow-listed headers: among them all that anything here is told by."""
    return {low: headers[name] for name in headers if (low := name.lower()) in STORED_HEADERS}


def _harness(agent: str) -> tuple[str | None, str | None]:
    for wire in HARNESSES:
        found = wire.agent.search(agent)
        if found is not None:
            return wire.name, found.group(1)
    return None, None


def _from_headers(headers: Mapping[str, str], turn: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """(session id, sub-agent id, harness)."""
    for parent, child, harness in PARENT_HEADERS:
        if headers.get(parent):
            return headers[parent], headers.get(child), harness
    agent = next((headers[name] for name in AGENT_HEADERS if headers.get(name)), None)
    if agent is None and any(headers.get(name) for name in CODEX_SUBAGENT):
        agent = headers.get(CODEX_THREAD) or str(turn.get("thread_id") or "") or None
    for header in SESSION_HEADERS:
        if headers.get(header.name):
            return headers[header.name], agent, header.harness
    return None, agent, None


def _from_body(hints: Mapping[str, Any]) -> str | None:
    client = hints.get("client_metadata")
    if isinstance(client, Mapping) and client.get("session_id"):
        return str(client["session_id"])
    metadata = hints.get("metadata")
    if isinstance(metadata, Mapping):
        user = _object(str(metadata.get("user_id") or ""))
        if user.get("session_id"):
            return str(user["session_id"])
    return str(hints["prompt_cache_key"]) if hints.get("prompt_cache_key") else None


def _object(text: str | None) -> dict[str, Any]:
    if not text or not text.startswith("{"):
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _id(value: str | None) -> str | None:
    return value if value and len(value) <= VALUE_MAX and value.isprintable() else None
