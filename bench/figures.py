"""What was measured: medians over rounds with their spread, by name, and what each part of the bench has to say.

Knows no bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def exact(cls, value: float) -> Self:
        """Of something that is the same every time."""
        return cls(value, value, value, 1)


def of_rounds(ours: Sequence[float], other: Sequence[float] | None = None) -> Figure:
    """The median over rounds; of the rounds' ratios where there is another to compare with."""
    values = list(ours) if other is None else [a / b for a, b in zip(ours, other, strict=True)]
    return Figure(median(values), min(values), max(values), len(values))


@dataclass(slots=True)
class Figures:
    """Of one part."""

    by_name: dict[str, Figure] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Also what is missing, and how to get it."""

    def add(self, name: str, figure: Figure) -> None:
        self.by_name[name] = figure

    def note(self, text: str) -> None:
        self.notes.append(text)

    def to_json(self) -> dict[str, Any]:
        return {"figures": {name: asdict(figure) for name, figure in self.by_name.items()}, "notes": self.notes}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        return cls({name: Figure(**figure) for name, figure in said["figures"].items()}, list(said["notes"]))
