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

STD_FLOOR: Final = 1e-6
"""Added to a group's standard deviation, as verl and TRL do."""


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


def group_advantages(rewards: Sequence[float], *, divide_by_std: bool) -> list[float] | None:
    """``A = (R - mean) / (std + 1e-6)`` over the sessions of one group; None if it has nothing to teach.

    GRPO, arXiv 2402.03300, equation 3, with the sample standard deviation (n - 1) that verl and TRL use. Without
    division: Dr. GRPO, arXiv 2503.20783, section 3.
    """
    if len(rewards) < 2 or max(rewards) == min(rewards):
        return None
    values = np.asarray(rewards, dtype=np.float64)
    centred = values - values.mean()
    scaled = centred / (values.std(ddof=1) + STD_FLOOR) if divide_by_std else centred
    return [float(a) for a in scaled]


def staleness(row: Sample, version: int) -> int | None:
    """Trainer version at consumption less the lowest version of the row's trained tokens."""
    return None if row.policy_version_min is None else version - row.policy_version_min


def select(samples: Iterable[Sample], *, version: int, max_staleness: int | None, divide_by_std: bool) -> Selection:
    """Filters rows, then compares the sessions of each group of a run."""
    chosen = Selection()
    sessions: dict[str, list[Sample]] = defaultdict(list)
    for row in sorted(samples, key=lambda s: (s.session_id, s.row_index)):
        if reason := _row_left(row, version, max_staleness):
            chosen.rows_dropped[reason] += 1
        else:
            sessions[row.session_id].append(row)
    groups: dict[tuple[str, str], list[list[Sample]]] = defaultdict(list)
    for rows in sessions.values():
        first = rows[0]
        if first.reward is None:
            chosen.sessions_dropped[Left.REWARD_NULL] += 1
        elif first.group_id is None:
            chosen.sessions_dropped[Left.NO_GROUP] += 1
        else:
            chosen.rewards.append(first.reward)
            groups[first.run_id, first.group_id].append(rows)
    for group in groups.values():
        _compare(chosen, group, divide_by_std)
    known = [staleness(row, version) for row in chosen.rows]
    chosen.staleness = [lag for lag in known if lag is not None]
    return chosen


def _row_left(row: Sample, version: int, max_staleness: int | None) -> Left | None:
    if not row.trainable or not row.response_mask.any():
        return Left.NOT_TRAINABLE
    lag = staleness(row, version)
    if lag is not None and max_staleness is not None and lag > max_staleness:
        return Left.STALE
    return Left.NEWER if row.policy_version_max is not None and row.policy_version_max > version else None


def _compare(chosen: Selection, group: list[list[Sample]], divide_by_std: bool) -> None:
    rewards = [rows[0].reward for rows in group if rows[0].reward is not None]
    advantages = group_advantages(rewards, divide_by_std=divide_by_std)
    if advantages is None:
        chosen.groups_dropped[Left.FEWER_THAN_TWO if len(group) < 2 else Left.NO_SPREAD] += 1
        return
    chosen.groups_kept += 1
    for rows, advantage in zip(group, advantages, strict=True):
        chosen.rows += rows
        chosen.advantages[rows[0].session_id] = advantage
        chosen.tokens[rows[0].session_id] = sum(int(row.response_mask.sum()) for row in rows)
