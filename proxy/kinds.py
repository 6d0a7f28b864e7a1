"""What a call is for: the main loop, a sub-agent, a compaction, a title, a memory. A label with the rule that gave it.

Rules are tried in order; the first that holds names the kind. Nothing is ever thrown away by a label.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from forge.proxy.attribution import Signs
from forge.storage.records import CallKind


@dataclass(frozen=True, slots=True)
class Seen:
    """What the rules look at."""

    headers: Mapping[str, str]
    hints: Mapping[str, Any]
    signs: Signs

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


TITLE: Final = re.compile(
    r"\b(title generator|generate (?:a|an|the)? ?(?:\w+ )?title|summari[sz]e .* into a .*title)", re.I
)
COMPACTION: Final = re.compile(
    r"(context checkpoint compaction|create a (?:detailed )?summary of (?:the|our) conversation"
    r"|summari[sz]e (?:the|our|this) conversation|compact(?:ed|ion) summary|handoff summary)",
    re.I,
)
MEMORY: Final = re.compile(r"(memory extraction|extract (?:durable |long-term )?memor(?:y|ies))", re.I)


def _subagent_header(*values: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.headers.get("x-openai-subagent", "") in values


RULES: Final = (
    Rule("codex-request-kind", CallKind.COMPACTION, lambda s: s.signs.turn.get("request_kind") == "compaction"),
    Rule("x-openai-subagent", CallKind.COMPACTION, _subagent_header("compact", "compaction")),
    Rule("x-openai-subagent", CallKind.MEMORY, _subagent_header("memory_consolidation")),
    Rule("text-title", CallKind.TITLE, lambda s: s.toolless and bool(TITLE.search(s.text("first_system")))),
    Rule("text-memory", CallKind.MEMORY, lambda s: bool(MEMORY.search(s.text("first_system")))),
    Rule("text-compaction", CallKind.COMPACTION, lambda s: s.toolless and bool(COMPACTION.search(s.text("last_user")))),
    Rule("agent-id", CallKind.SUBAGENT, lambda s: s.signs.agent_id is not None),
    Rule("x-openai-subagent", CallKind.SUBAGENT, lambda s: bool(s.headers.get("x-openai-subagent"))),
)
DEFAULT_RULE: Final = "default"


def kind_of(seen: Seen) -> tuple[CallKind, str]:
    """The kind and the rule's name."""
    for rule in RULES:
        if rule.holds(seen):
            return rule.kind, rule.name
    return CallKind.MAIN, DEFAULT_RULE
