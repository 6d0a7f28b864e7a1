"""What a call is for: the main loop, a sub-agent, a compaction, a title, a memory. A label with the rule that gave it.

Rules are tried in order; the first that holds names the kind. Nothing is ever thrown away by a label. What harnesses
write in their side calls stands in one data table; its newest wordings were read in the versions named there. The one
non-obvious fact: the texts that are looked at hardly change within a session, so what was found in one is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from forge.proxy.sessions.attribution import NAMES_AGENTS, Signs
from forge.storage.records import CallKind


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rules look at."""

    headers: Mapping[str, str]
    hints: Mapping[str, Any]
    signs: Signs
    agent_by_content: str | None = None
    """The sub-agent whose history this is, where the harness does not say so itself."""

    def text(self, name: str) -> str:
        value = self.hints.get(name)
        return value if isinstance(value, str) else ""

    @property
    def toolless(self) -> bool:
        return not self.hints.get("tools")


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    kind: CallKind
    holds: Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Wording:
    """A sentence of a harness's side call."""

    name: str
    kind: CallKind
    text: re.Pattern[str]
    where: tuple[str, ...]
    """Hints it may stand in."""
    toolless: bool = True
    """Only where the call offers no tools."""


SYSTEM: Final = ("first_system",)
ASKED: Final = ("last_user",)
ANYWHERE: Final = ("first_system", "first_user", "last_user")
_C, _T, _M, _S = CallKind.COMPACTION, CallKind.TITLE, CallKind.MEMORY, CallKind.SUBAGENT

WORDINGS: Final = (
    # Codex 0.163: the wording of a provider that compacts locally.
    Wording("codex-compact", _C, re.compile(r"You are performing a CONTEXT CHECKPOINT COMPACTION"), ASKED),
    # Claude Code 2.1.332: its compaction may keep the session's system prompt and tools.
    Wording(
        "claude-code-compact",
        _C,
        re.compile(r"Your task is to create a detailed summary of the (?:conversation so far|RECENT portion)"),
        ASKED,
        toolless=False,
    ),
    Wording("claude-code-compact", _C, re.compile(r"helpful AI assistant tasked with summarizing conv"), SYSTEM),
    # OpenCode 1.18.33, and the older request.
    Wording("opencode-compact", _C, re.compile(r"You are a context summarization agent"), SYSTEM),
    Wording("opencode-compact", _C, re.compile(r"(?:Create a new|Update the) anchored summary"), ASKED),
    Wording("opencode-compact", _C, re.compile(r"Provide a detailed (?:prompt|summary) for continuing our"), ASKED),
    Wording("opencode-title", _T, re.compile(r"You are a title generator\. You output ONLY a thread title"), SYSTEM),
    # pi 1.6.0, and OpenClaw 2026.9.6, which is built on it.
    Wording("pi-compact", _C, re.compile(r"You are a context summarization assistant"), SYSTEM),
    Wording("pi-compact", _C, re.compile(r"Create a structured context checkpoint summary that another LLM"), ASKED),
    # Qwen Code 0.24.4 and Gemini CLI, of which it is a fork.
    Wording(
        "qwen-compact", _C, re.compile(r"You are the component that summarizes (?:a conversation|internal)"), ANYWHERE
    ),
    Wording(
        "gemini-compact", _C, re.compile(r"specialized system component responsible for distilling chat hist"), ANYWHERE
    ),
    Wording("qwen-summary", _C, re.compile(r"You are a specialized context summarizer that creates"), ANYWHERE),
    Wording(
        "qwen-memory",
        _M,
        re.compile(
            r"You are now acting as the managed memory extraction subagent|You are performing a managed memory dream"
            r"|You are reviewing this conversation to extract reusable skills"
            r"|You are saving one explicit durable memory"
        ),
        ANYWHERE,
        toolless=False,
    ),
    # Hermes 0.19.0.
    Wording("hermes-compact", _C, re.compile(r"You are a summarization agent creating a context checkpoint"), ASKED),
    Wording("hermes-title", _T, re.compile(r"Generate a short, descriptive title \(3-7 words\)"), SYSTEM),
    # What others say, and these in other versions.
    Wording(
        "text-title",
        _T,
        re.compile(r"(?:title generator|generate (?:\w+,? ){0,4}title|summari[sz]e .* into .*title)", re.I),
        SYSTEM,
    ),
    Wording("text-memory", _M, re.compile(r"memory extraction|extract (?:\w+ )?memor(?:y|ies)", re.I), SYSTEM),
    Wording(
        "text-compaction",
        _C,
        re.compile(
            r"context checkpoint|create a (?:detailed )?summary of (?:the|our) conversation"
            r"|summari[sz]e (?:the|our|this) conversation|compact(?:ed|ion) summary|handoff summary",
            re.I,
        ),
        ASKED,
    ),
)  # fmt: skip


SUBAGENT: Final = re.compile(r"\b[Yy]ou are (?:now acting as )?(?:an?|the) (?:[\w-]+ ){0,3}sub-?agent\b")
"""How the system prompts of Hermes 0.19.0 and Qwen Code 0.24.4 begin for one."""


def _subagent_header(*values: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.headers.get("x-openai-subagent", "") in values


SIGNS: Final = ("summar", "title", "memor", "checkpoint", "distilling", "reusable skills", "continuing our")
"""Every wording holds one of these, in small letters."""
TEXTS: Final = 1024
"""Texts whose wordings are remembered."""


@lru_cache(maxsize=TEXTS)
def wordings_in(text: str) -> tuple[int, ...]:
    """The places in ``WORDINGS`` of those that stand in the text."""
    small = text.lower()
    if not any(sign in small for sign in SIGNS):
        return ()
    return tuple(place for place, wording in enumerate(WORDINGS) if wording.text.search(text))


def _wording(seen: Seen) -> Wording | None:
    """The first one that holds."""
    found = {place: wordings_in(text) for place in ANYWHERE if (text := seen.text(place))}
    there = sorted({number for numbers in found.values() for number in numbers})
    for number in there:
        wording = WORDINGS[number]
        fits = seen.toolless or not wording.toolless
        if fits and any(number in found.get(place, ()) for place in wording.where):
            return wording
    return None


@lru_cache(maxsize=TEXTS)
def called_subagent(text: str) -> bool:
    """Does a system prompt say that it is a sub-agent's?"""
    return ("subagent" in text or "sub-agent" in text) and SUBAGENT.search(text) is not None


BEFORE_WORDINGS: Final = (
    Rule("codex-request-kind", _C, lambda s: s.signs.turn.get("request_kind") == "compaction"),
    Rule("x-openai-subagent", _C, _subagent_header("compact", "compaction")),
    Rule("x-openai-subagent", _M, _subagent_header("memory_consolidation")),
)
AFTER_WORDINGS: Final = (
    Rule("agent-id", _S, lambda s: s.signs.agent_id is not None),
    Rule("x-openai-subagent", _S, lambda s: bool(s.headers.get("x-openai-subagent"))),
    Rule(
        "called-subagent", _S, lambda s: s.signs.harness not in NAMES_AGENTS and called_subagent(s.text("first_system"))
    ),
    Rule("other-system-and-tools", _S, lambda s: s.agent_by_content is not None),
)
DEFAULT_RULE: Final = "default"


def kind_of(seen: Seen) -> tuple[CallKind, str]:
    """The kind and the rule's name."""
    rule = _first(BEFORE_WORDINGS, seen) or _wording(seen) or _first(AFTER_WORDINGS, seen)
    return (rule.kind, rule.name) if rule is not None else (CallKind.MAIN, DEFAULT_RULE)


def _first(rules: Sequence[Rule], seen: Seen) -> Rule | None:
    return next((rule for rule in rules if rule.holds(seen)), None)
