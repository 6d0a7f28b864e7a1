"""What a run came to: one line a session, and the exit code that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forge.storage.errors import Exit
from forge.storage.records import SessionStatus

UNREACHED = frozenset({SessionStatus.POLICY_DOWN, SessionStatus.LAUNCH_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    session_id: str
    task_id: str
    rollout_index: int
    harness: str
    status: SessionStatus
    error: str | None = None
    exit_code: int | None = None
    seconds: float = 0.0
    calls: int = 0
    ok_calls: int = 0
    output_tokens: int = 0
    rows: int = 0
    """Training rows."""
    reward: float | None = None
    reward_reason: str | None = None
    """Why there is no reward."""
    kept: Path
    """Where the harness's output and transcript are."""
    untrainable: tuple[tuple[str, str], ...] = ()
    """Calls that ended ok and cannot train: (call id, reason)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    run_id: str
    data: Path
    strict: bool
    sessions: Sequence[SessionReport]

    @property
    def untrainable(self) -> list[tuple[SessionReport, str, str]]:
        return [(each, call_id, reason) for each in self.sessions for call_id, reason in each.untrainable]

    @property
    def exit_code(self) -> Exit:
        """0: every session has calls that were served, and in strict mode all of them can train."""
        if all(each.status in UNREACHED for each in self.sessions):
            return Exit.UNAVAILABLE
        if self.strict and self.untrainable:
            return Exit.UNTRAINABLE
        return Exit.OK if all(each.ok_calls for each in self.sessions) else Exit.FAILED
