"""How samples are made from calls: a recipe has a name, a few choices and a hash.

The hash stands beside the samples it made, so that two sets are compared knowingly. ``RULES`` is part of it: it
goes up whenever the same calls and choices would give other rows.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

import msgspec

from forge.storage.errors import BadInput
from forge.storage.records import CallKind

RULES: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str = "default"
    kinds: tuple[str, ...] = (CallKind.MAIN, CallKind.SUBAGENT, CallKind.COMPACTION)
    """Calls whose tokens are trained; the tokens of others stand in a row with mask 0, where a trained call needs
    them as its context."""
    max_tokens: int | None = None
    """Longest row (prompt and response); what is beyond is cut from the end. None: no limit."""
    truncated: bool = True
    """Train turns that ended because they reached a length limit."""
    straddling: bool = True
    """Train turns that were sampled while the weights changed."""

    def __post_init__(self) -> None:
        if unknown := set(self.kinds) - set(CallKind):
            raise BadInput(
                f"recipe {self.name!r}: no such kind of call: {', '.join(sorted(unknown))}",
                f"use some of {', '.join(CallKind)}",
            )
        if self.max_tokens is not None and self.max_tokens < 2:
            raise BadInput(f"recipe {self.name!r}: max_tokens is {self.max_tokens}", "give at least 2")

    def to_json(self) -> bytes:
        """What is stored beside the samples; the same choices give the same bytes. A choice that came later is named
        only where it is made, so that older sets keep their bytes."""
        later = {name: False for name in ("straddling", "truncated") if not getattr(self, name)}
        return msgspec.json.encode(
            {"kinds": sorted(self.kinds), "max_tokens": self.max_tokens, "name": self.name, "rules": RULES, **later}
        )

    @property
    def hash(self) -> str:
        return hashlib.blake2b(self.to_json(), digest_size=8).hexdigest()


DEFAULT: Final = Recipe()
