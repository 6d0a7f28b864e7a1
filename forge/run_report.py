"""What a run came to: one line a session, and the exit code that sums it up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from forge.storage.errors import Exit
from forge.storage.records import SessionStatus
from forge.transcripts import NO_TRANSCRIPT, Comparison

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
    transcript: Comparison = NO_TRANSCRIPT
    """The harness's own record of its calls against ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSummary:
    """The sessions of one harness."""

    harness: str
    sessions: int
    completed: int
    reward: float | None
    """Mean of the rewards there are."""
    calls: int
    rows: float
    """Training rows per session with a call: what a broken prefix costs."""
    seconds: float
    """Mean of a session."""


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
    def summaries(self) -> list[HarnessSummary]:
        """One per harness, in the order in which they were named."""
        return [_summary(name, group) for name, group in self.by_harness().items()]

    def by_harness(self) -> dict[str, list[SessionReport]]:
        groups: dict[str, list[SessionReport]] = {}
        for each in self.sessions:
            groups.setdefault(each.harness, []).append(each)
        return groups

    @property
    def exit_code(self) -> Exit:
        """0: every session has calls that were served, and in strict mode all of them can train."""
        if all(each.status in UNREACHED for each in self.sessions):
            return Exit.UNAVAILABLE
        if self.strict and self.untrainable:
            return Exit.UNTRAINABLE
        return Exit.OK if all(each.ok_calls for each in self.sessions) else Exit.FAILED


def _summary(harness: str, sessions: Sequence[SessionReport]) -> HarnessSummary:
    rewards = [each.reward for each in sessions if each.reward is not None]
    called = [each.rows for each in sessions if each.calls]
    return HarnessSummary(
        harness=harness,
        sessions=len(sessions),
        completed=sum(each.status is SessionStatus.COMPLETED for each in sessions),
        reward=fmean(rewards) if rewards else None,
        calls=sum(each.calls for each in sessions),
        rows=fmean(called) if called else 0.0,
        seconds=fmean(each.seconds for each in sessions),
    )
