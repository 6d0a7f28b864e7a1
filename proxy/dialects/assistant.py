"""An assistant's turn as it comes back in pieces: items, blocks or parts that must be one chat message again.

Owns how such a message is written, so that every translated history words a turn alike; which pieces belong to one
turn is the format's own to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class AssistantTurn:
    reasoning: str = ""
    content: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        """Without a word or a call its content is an empty text, as engines write it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            # The older name too: which one a policy server reads differs by version.
            message |= {"reasoning": self.reasoning, "reasoning_content": self.reasoning}
        if self.calls:
            message["tool_calls"] = self.calls
        elif self.content is None:
            message["content"] = ""
        return message
