"""What balanced adaptive rollout saves against plain GRPO, for tasks of every pass rate; and where it saves nothing.

The rule itself (``balance``) is played through every sequence of wins and losses that there is, each weighed by how
likely it is: no chance, no spread. ``python -m forge.rollouts.simulation`` prints the table of ``docs/rollouts.md``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from forge.rollouts.balance import Balance, Choose, Draw, Result

RATES: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0)
ADAPTIVE: Final = Balance()
PLAIN: Final = Balance(size=8, stride=8, maximum=8)
SMALL: Final = Balance(size=4, stride=4, maximum=4)
HEAD: Final = (
    "| pass rate | sessions per group that teaches: adaptive (4 of 4 to 8) | plain, 8 | plain, 4 "
    "| saved against plain 8 | against plain 4 | sessions per trained session: adaptive | plain, 8 |"
)
LEAST: Final = 0.005
"""A smaller saving is none."""


class Spent(NamedTuple):
    """Means of one try at a group."""

    drawn: float
    kept: float
    """Chance that it teaches."""
    trained: float
    """Sessions in the group, 0 where it does not."""

    @property
    def per_group(self) -> float | None:
        return self.drawn / self.kept if self.kept else None

    @property
    def per_session(self) -> float | None:
        return self.drawn / self.trained if self.trained else None


@dataclass(frozen=True, slots=True)
class Row:
    rate: float
    """Chance that a session of the task is won."""
    adaptive: Spent
    plain: Spent
    small: Spent


def spent(rule: Balance, rate: float) -> Spent:
    drawn = kept = trained = 0.0
    for wins in product((True, False), repeat=rule.maximum):
        won = sum(wins)
        weight = rate**won * (1 - rate) ** (len(wins) - won)
        used, size = _try(rule, iter(wins))
        drawn, kept, trained = drawn + weight * used, kept + weight * (size > 0), trained + weight * size
    return Spent(drawn, kept, trained)


def _try(rule: Balance, wins: Iterator[bool]) -> tuple[int, int]:
    """(sessions drawn, sessions in the group: 0 if it teaches nothing)."""
    drawn: list[Result] = []
    while isinstance(said := rule.decide(drawn), Draw):
        drawn += [Result(float(next(wins))) for _ in range(said.count)]
    return len(drawn), len(said.indices) if isinstance(said, Choose) else 0


def rows() -> list[Row]:
    return [Row(rate, *(spent(rule, rate) for rule in (ADAPTIVE, PLAIN, SMALL))) for rate in RATES]


def table(found: Sequence[Row]) -> str:
    """Markdown."""
    lines = [HEAD, "| ---: " * (HEAD.count("|") - 1) + "|"]
    for row in found:
        mine, plain, small = row.adaptive, row.plain, row.small
        cells = [f"{row.rate:g}", _number(mine.per_group), _number(plain.per_group), _number(small.per_group)]
        cells += [_saved(mine, plain), _saved(mine, small), _number(mine.per_session), _number(plain.per_session)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "no group" if value is None else f"{value:.2f}"


def _saved(mine: Spent, other: Spent) -> str:
    if mine.per_group is None or other.per_group is None:
        return "none"
    share = 1 - mine.per_group / other.per_group
    return f"{share:.0%}" if share > LEAST else "none"


if __name__ == "__main__":
    print(table(rows()))
