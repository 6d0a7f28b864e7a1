"""Which sessions learn, and how much better than its group each one did.

The unit is the session: a session that was split into many rows counts once in its group's mean. Pure numpy; knows
neither tokens nor torch. Whatever is left out is counted under a reason, because a run that silently learns from
half its data looks just like one that learns from all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np

from forge.storage.records import Sample
from forge.trainer.config import Baseline, Overlong

STD_FLOOR: Final = 1e-6
"""Added to a group's standard deviation, as verl does (TRL adds 1e-4)."""


class Left(StrEnum):
    """Why a session or a group does not learn."""

    NOT_TRAINABLE = "not_trainable"
    """Its rows are not for training (an evaluation)."""
    STALE = "stale"
    """Sampled by weights too many versions older than the trainer's."""
    NEWER = "newer"
    """Sampled by a later version than the trainer starts from."""
    REWARD_NULL = "reward_null"
    NO_GROUP = "no_group"
    OVERLONG = "overlong"
    """Ended by a length limit, where the run masks those."""
    FEWER_THAN_TWO = "fewer_than_two"
    """A group with fewer than two rewarded sessions has nothing to compare."""
    NO_SPREAD = "no_spread"
    """All rewards of the group are equal: its advantages are zero."""


@dataclass(slots=True)
class Selection:
    """The rows that learn, and the account of the rest."""

    rows: list[Sample] = field(default_factory=list)
    """Kept rows, ordered by id."""
    advantages: dict[str, float] = field(default_factory=dict)
    """By session id; every kept session has one."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Masked tokens of a session's kept rows, by session id: the denominator of its loss."""
    rewards: list[float] = field(default_factory=list)
    """Of the rewarded sessions, kept or not."""
    groups_kept: int = 0
    groups_dropped: Counter[str] = field(default_factory=Counter)
    sessions_dropped: Counter[str] = field(default_factory=Counter)
    rows_dropped: Counter[str] = field(default_factory=Counter)
    staleness: list[int] = field(default_factory=list)
    """Of each kept row whose version is known."""

    def part(self, sessions: Iterable[str]) -> Selection:
        """The same with these sessions' rows alone; the account stays that of the whole."""
        wanted = set(sessions)
        return Selection(
            rows=[row for row in self.rows if row.session_id in wanted],
            advantages={s: a for s, a in self.advantages.items() if s in wanted},
            tokens={s: n for s, n in self.tokens.items() if s in wanted},
            rewards=self.rewards,
            groups_kept=self.groups_kept,
            groups_dropped=self.groups_dropped,
            sessions_dropped=self.sessions_dropped,
            rows_dropped=self.rows_dropped,
            staleness=self.staleness,
        )


def group_advantages(rewards: Sequence[float], baseline: Baseline) -> list[float] | None:
    """The advantages of one group's sessions; None if it has nothing to teach.

    - ``std``: ``(R - mean) / (std + 1e-6)``: GRPO, arXiv 2402.03300, section 4.1.2, with the sample standard deviation
      (n - 1) that verl and TRL use;
    - ``mean``: ``R - mean``: Dr. GRPO, arXiv 2503.20783, section 3.2;
    - ``leave-one-out``: ``R - mean of the others``: RLOO, arXiv 2402.14740, section 3.4; it is n / (n - 1) times the
      second.
    """
    if len(rewards) < 2 or max(rewards) == min(rewards):
        return None
    values = np.asarray(rewards, dtype=np.float64)
    centred = values - values.mean()
    match baseline:
        case Baseline.STD:
            centred = centred / (values.std(ddof=1) + STD_FLOOR)
        case Baseline.LEAVE_ONE_OUT:
            centred = centred * (len(values) / (len(values) - 1))
        case Baseline.MEAN:
            pass
    return [float(a) for a in centred]


def staleness(row: Sample, version: int) -> int | None:
    """Trainer version at consumption less the lowest version of the row's trained tokens."""
    return None if row.policy_version_min is None else version - row.policy_version_min


def select(
    samples: Iterable[Sample],
    *,
    version: int,
    max_staleness: int | None,
    baseline: Baseline,
    overlong: Overlong = Overlong.KEEP,
) -> Selection:
    """Filters rows, then compares the sessions of each group of a run."""
    chosen = Selection()
    groups: dict[tuple[str, str], list[list[Sample]]] = defaultdict(list)
    for rows in _sessions(samples, chosen, version, max_staleness).values():
        first = rows[0]
        if first.reward is None:
            chosen.sessions_dropped[Left.REWARD_NULL] += 1
        elif first.group_id is None:
            chosen.sessions_dropped[Left.NO_GROUP] += 1
        else:
            chosen.rewards.append(first.reward)
            groups[first.run_id, first.group_id].append(rows)
    for group in groups.values():
        _compare(chosen, group, baseline, overlong)
    _lags(chosen, version)
    return chosen


def select_all(samples: Iterable[Sample], *, version: int) -> Selection:
    """For imitation: every row that may train, with advantage 1, whatever its group, reward and age."""
    chosen = Selection()
    for session, rows in _sessions(samples, chosen, version, None).items():
        _keep(chosen, session, rows, 1.0)
        if rows[0].reward is not None:
            chosen.rewards.append(rows[0].reward)
    _lags(chosen, version)
    return chosen


def _sessions(
    samples: Iterable[Sample], chosen: Selection, version: int, max_staleness: int | None
) -> dict[str, list[Sample]]:
    sessions: dict[str, list[Sample]] = defaultdict(list)
    for row in sorted(samples, key=lambda s: (s.session_id, s.row_index)):
        if reason := _row_left(row, version, max_staleness):
            chosen.rows_dropped[reason] += 1
        else:
            sessions[row.session_id].append(row)
    return sessions


def _row_left(row: Sample, version: int, max_staleness: int | None) -> Left | None:
    if not row.trainable or not row.response_mask.any():
        return Left.NOT_TRAINABLE
    lag = staleness(row, version)
    if lag is not None and max_staleness is not None and lag > max_staleness:
        return Left.STALE
    return Left.NEWER if row.policy_version_max is not None and row.policy_version_max > version else None


def _compare(chosen: Selection, group: list[list[Sample]], baseline: Baseline, overlong: Overlong) -> None:
    rewards = [rows[0].reward for rows in group if rows[0].reward is not None]
    advantages = group_advantages(rewards, baseline)
    if advantages is None:
        chosen.groups_dropped[Left.FEWER_THAN_TWO if len(group) < 2 else Left.NO_SPREAD] += 1
        return
    chosen.groups_kept += 1
    for rows, advantage in zip(group, advantages, strict=True):
        # DAPO, arXiv 2503.14476, section 3.4 (overlong filtering): a row that was cut short says nothing of its end.
        kept = rows if overlong is Overlong.KEEP else [row for row in rows if not row.truncated]
        chosen.rows_dropped[Left.OVERLONG] += len(rows) - len(kept)
        if kept:
            _keep(chosen, rows[0].session_id, kept, advantage)
    chosen.rows_dropped += Counter()  # forget zero counts


def _keep(chosen: Selection, session: str, rows: list[Sample], advantage: float) -> None:
    chosen.rows += rows
    chosen.advantages[session] = advantage
    chosen.tokens[session] = sum(int(row.response_mask.sum()) for row in rows)


def _lags(chosen: Selection, version: int) -> None:
    known = [staleness(row, version) for row in chosen.rows]
    chosen.staleness = [lag for lag in known if lag is not None]
