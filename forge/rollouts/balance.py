"""Balanced adaptive rollout: how many sessions of a task to draw, and which of them make its group. Pure.

A group whose rewards are all alike teaches nothing, and more sessions of a task that the policy half masters teach
little more than a few. So sessions are drawn a stride at a time until a group with both kinds in it can be chosen.
The rule is that of Orchard's slime (MSR-Orchard/slime, ``slime/rollout/sglang_rollout.py``,
``_try_select_training_group``), whose defaults these are. What is chosen is no fair sample of what was drawn: a pass
rate is told over all sessions (``pass_rate``), never over the chosen ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from forge.storage.errors import BadInput


class Result(NamedTuple):
    """What a drawn session came to."""

    reward: float | None
    """None where there is none: aborted, timed out, not judged. It takes no place in a group; another is drawn."""
    truncated: bool = False
    """A length limit ended it: chosen after those that ended by themselves."""

    @property
    def positive(self) -> bool:
        return self.reward is not None and self.reward > 0


class Dropped(StrEnum):
    """Why a task's sessions made no group."""

    FEWER_THAN_TWO = "fewer_than_two"
    """Fewer than two have a reward: nothing to compare."""
    ABORTED = "aborted"
    """Too few have a reward to fill the group, and such groups are not wanted."""
    NO_POSITIVE = "no_positive"
    NO_SPREAD = "no_spread"


@dataclass(frozen=True, slots=True)
class Draw:
    """Run so many sessions more."""

    count: int


@dataclass(frozen=True, slots=True)
class Choose:
    """The group: places in the order drawn. All others are not selected."""

    indices: tuple[int, ...]
    balanced: bool
    """False: no balanced group could be had, this is the best of them."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    reason: Dropped


Decision = Draw | Choose | GiveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The rule. ``size == stride == maximum`` is plain GRPO with groups that teach nothing left out."""

    size: int = 4
    """Sessions of a group."""
    stride: int = 4
    """Drawn at a time."""
    maximum: int = 8
    """Drawn for one group at most."""
    share_min: float = 0.25
    """Least share of positive sessions in a balanced group."""
    share_max: float = 0.75
    drop_on_abort: bool = False
    """A group that cannot be filled is dropped (Orchard's rule); otherwise it is as large as it can be, from two."""

    def __post_init__(self) -> None:
        if self.size < 2:
            raise BadInput(f"a group of {self.size} has nothing to compare", "give --group-size 2 or more")
        if not (1 <= self.stride <= self.maximum and self.size <= self.maximum):
            raise BadInput(
                f"sessions are drawn {self.stride} at a time, at most {self.maximum}, for a group of {self.size}",
                "neither --draw nor --group-size may be above --draw-max",
            )
        if not 0 <= self.share_min <= self.share_max <= 1:
            raise BadInput(
                f"the positive share shall lie between {self.share_min} and {self.share_max}",
                "give two numbers from 0 to 1, the lower one first",
            )

    def decide(self, results: Sequence[Result]) -> Decision:
        """What to do when the sessions drawn so far have ended with ``results``."""
        chosen = self._pick(results, self.share_min, self.share_max)
        if chosen is not None and _spread(results, chosen):
            return Choose(chosen, balanced=True)
        left = self.maximum - len(results)
        return Draw(min(self.stride, left)) if left > 0 else self._best(results)

    def _best(self, results: Sequence[Result]) -> Decision:
        """The relaxed choice, once no more may be drawn: any share with a positive session and some spread."""
        judged = sum(each.reward is not None for each in results)
        if judged < 2:
            return GiveUp(Dropped.FEWER_THAN_TWO)
        if judged < self.size and self.drop_on_abort:
            return GiveUp(Dropped.ABORTED)
        if not any(each.positive for each in results):
            return GiveUp(Dropped.NO_POSITIVE)
        chosen = self._pick(results, 0, 1, min(self.size, judged))
        assert chosen is not None
        return Choose(chosen, balanced=False) if _spread(results, chosen) else GiveUp(Dropped.NO_SPREAD)

    def _pick(
        self, results: Sequence[Result], share_min: float, share_max: float, size: int | None = None
    ) -> tuple[int, ...] | None:
        """The group whose count of positive sessions is nearest to the middle of the shares, the lower of two; None
        if no count between the shares can be had."""
        size = size or self.size
        positive = _ranked(results, (at for at, each in enumerate(results) if each.positive))
        negative = _ranked(
            results, (at for at, each in enumerate(results) if each.reward is not None and not each.positive)
        )
        ideal = round((share_min + share_max) / 2 * size)
        counts = range(math.ceil(share_min * size), math.floor(share_max * size) + 1)
        for count in sorted(counts, key=lambda count: abs(count - ideal)):
            if count <= len(positive) and size - count <= len(negative):
                return tuple(sorted(positive[:count] + negative[: size - count]))
        return None


def pass_rate(results: Iterable[Result]) -> float | None:
    """Positive sessions among all that have a reward, chosen or not; None if none has."""
    judged = [each.positive for each in results if each.reward is not None]
    return sum(judged) / len(judged) if judged else None


def _ranked(results: Sequence[Result], places: Iterable[int]) -> list[int]:
    """Those that ended by themselves first, each kind in the order drawn."""
    return sorted(places, key=lambda at: results[at].truncated)


def _spread(results: Sequence[Result], chosen: Sequence[int]) -> bool:
    return len({results[at].reward for at in chosen}) > 1
