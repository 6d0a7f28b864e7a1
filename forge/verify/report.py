"""What an audit found: findings, the drift of the scored tokens, and the verdict that follows from them.

Pure. A finding *fails* a run where training on it would teach something wrong or where data is gone; it *warns* where
the data knows already and leaves itself out.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from forge.run_stats import RunStats
from forge.storage.errors import Exit

NAMED_MAX: Final = 10
"""Calls or rows of one kind that are named; more are counted."""


class Kind(StrEnum):
    UNREADABLE = "unreadable"
    """A file that cannot be read."""
    PROMPT = "prompt"
    """A prompt that cannot be rebuilt as it was recorded."""
    MEDIA = "media"
    """An image, or another medium, that a call refers to is gone or not what was stored."""
    GAP = "gap"
    """An accepted call without a row."""
    TWICE = "twice"
    """A call with more rows than choices."""
    LENGTHS = "lengths"
    """Ids, log probs and the engine's counts disagree in a trainable call."""
    LOG_PROBS = "log_probs"
    """A log prob that is missing, not finite or above zero in a trainable call."""
    PADDED = "padded"
    """Log probs of exactly 0 that are no log probs."""
    TEXT = "text"
    """The answer's text or tool calls are not in its ids."""
    SESSION = "session"
    """A call or row stands under a session that is not its own."""
    ROWS = "rows"
    """A training row is not made of its calls."""
    UNTRAINED = "untrained"
    """A trainable call that is in no row, for no reason known."""
    TRANSCRIPT = "transcript"
    """The harness's own record tells of other calls."""
    LOST = "lost"
    """Calls that went well and cannot train, because the engine's ids or log probs are not there or not sound."""
    SHIFTED = "shifted"
    """Log probs that belong to neighbouring ids."""
    RAW = "raw"
    """Log probs before the temperature was applied."""
    TEMPERATURE = "temperature"
    """Sampled at another temperature than the row says."""
    CUT = "cut"
    """Sampled from a distribution cut by a top_p, top_k or min_p that the row does not tell of."""
    WEIGHTS = "weights"
    """Sampled by other weights than the row says."""
    STALE_PREFIX = "stale_prefix"
    """Some of a version's calls fit and some do not: their prompts were read with other weights."""
    DRIFT = "drift"
    """Further from the fresh log probs than the threshold allows."""


class Level(StrEnum):
    FAIL = "fail"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    kind: Kind
    text: str
    level: Level = Level.FAIL
    where: tuple[str, ...] = ()
    """Call, row or session ids, or files; ``NAMED_MAX`` at most."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Nats. A bf16 engine stays near 0.03 on average beside an fp32 pass, fp32 beside fp32 near 1e-5."""

    mean: float = 0.05
    p99: float = 0.5


@dataclass(frozen=True, slots=True)
class Drift:
    """|recorded - fresh| over the scored tokens."""

    by: str
    """What scored them."""
    calls: int
    tokens: int
    mean: float
    p99: float
    max: float
    unscored_tokens: int
    """Of these calls, at a temperature at which the server does not tell them."""
    left_out: dict[str, int]
    """Calls that could not be scored, by reason."""


@dataclass(slots=True)
class Report:
    run_id: str
    stats: RunStats
    thresholds: Thresholds = field(default_factory=Thresholds)
    findings: list[Finding] = field(default_factory=list)
    drift: Drift | None = None
    notes: list[str] = field(default_factory=list)
    """What was not looked at, and why."""
    opens: int | None = None
    """Accepted calls of the run in the journal that is kept."""
    transcripts: dict[str, int] = field(default_factory=dict)
    """Sessions by what their harness's own record says: ok, differs, none."""

    @property
    def failed(self) -> bool:
        return any(finding.level is Level.FAIL for finding in self.findings)

    @property
    def exit_code(self) -> Exit:
        return Exit.UNTRAINABLE if self.failed else Exit.OK

    def told(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "verdict": "fail" if self.failed else "ok",
            "findings": [asdict(finding) for finding in self.findings],
            "drift": asdict(self.drift) if self.drift else None,
            "thresholds": asdict(self.thresholds),
            "opens": self.opens,
            "transcripts": self.transcripts,
            "notes": self.notes,
            "stats": self.stats.told(),
        }


def finding(kind: Kind, text: str, where: list[str], level: Level = Level.FAIL) -> list[Finding]:
    """One finding about all of ``where``, or none."""
    return [Finding(kind, text, level, tuple(where[:NAMED_MAX]), len(where))] if where else []
