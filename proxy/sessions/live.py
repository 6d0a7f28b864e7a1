"""One session in this process: its record, what it has used of its budgets, what its calls have said and thought.

Owns the arithmetic of budgets and what is running; it must not know the journal, nor the other sessions. What is
here beside the record is in memory alone.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from forge.proxy.sessions.agents import Agents
from forge.proxy.sessions.history import History
from forge.proxy.sessions.reasoning import Reasoning
from forge.proxy.sessions.spec import Budgets
from forge.storage.frames import Open
from forge.storage.records import Session, SessionStatus


@dataclass(slots=True)
class Used:
    """What a session has used of its budgets."""

    calls: int = 0
    output_tokens: int = 0
    context: int = 0
    """Prompt and output of its longest call."""


@dataclass(slots=True, eq=False)
class Live:
    """One session in this process."""

    record: Session
    budgets: Budgets | None = None
    sampling: dict[str, Any] | None = None
    history: History = field(default_factory=History)
    agents: Agents = field(default_factory=Agents)
    reasoning: Reasoning = field(default_factory=Reasoning)
    running: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    """Call id to the task that serves it."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    replica: str | None = None
    """Where its prefix cache is."""
    calls: int = 0
    output_tokens: int = 0
    context: int = 0
    """Prompt and output of its longest call."""
    unfit_limit: int | None = None
    """Output tokens that did not fit beside a prompt of its."""
    opened: float = field(default_factory=time.monotonic)
    used: float = field(default_factory=time.monotonic)
    closing: bool = False
    external: tuple[str | None, str] | None = None
    """Of an implicit session: its harness, and that one's own id for it."""
    last_open: tuple[tuple[Any, ...], Open] | None = None
    """What its last call's ``open`` frame said that the next one's may say again, and what that was told by."""
    restored: bool = False
    """An earlier start of the proxy opened it: its first frames may be in the dataset alone."""

    @property
    def id(self) -> str:
        return self.record.session_id

    @property
    def is_open(self) -> bool:
        return self.record.status == SessionStatus.OPEN and not self.closing

    @property
    def counts_tokens(self) -> bool:
        """A budget needs to know what each call's answer holds."""
        return self.budgets is not None and (self.budgets.output_tokens is not None or self.budgets.context is not None)

    def spent(self) -> str | None:
        """The budget that is used up, or None."""
        budgets = self.budgets
        if budgets is None:
            return None
        if budgets.calls is not None and self.calls >= budgets.calls:
            return "calls"
        if budgets.output_tokens is not None and self.output_tokens >= budgets.output_tokens:
            return "output_tokens"
        if budgets.context is not None and self.context >= budgets.context:
            return "context"
        if budgets.seconds is not None and time.monotonic() - self.opened >= budgets.seconds:
            return "seconds"
        return None

    def tokens_left(self) -> int | None:
        """Output tokens that the next call may have; None without such a budget. A prompt is taken to be no shorter
        than the longest exchange so far, so a context budget holds for histories that grow."""
        if self.budgets is None:
            return None
        budgets = ((self.budgets.output_tokens, self.output_tokens), (self.budgets.context, self.context))
        left = [budget - used for budget, used in budgets if budget is not None]
        return max(1, min(left)) if left else None

    def begin(self, call_id: str, task: asyncio.Task[Any]) -> None:
        self.calls += 1
        self.running[call_id] = task
        self.idle.clear()
        self.used = time.monotonic()

    def end(self, call_id: str) -> None:
        self.running.pop(call_id, None)
        self.used = time.monotonic()
        if not self.running:
            self.idle.set()
