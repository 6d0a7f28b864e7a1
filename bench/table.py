"""Bars and figures as text: a table for the terminal, and the page ``docs/benchmarks.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bench.bars import BARS, UNKNOWN, Bar
from bench.figures import Figure, Figures

HEAD: Final = ("part", "what", "must", "aim", "measured", "spread", "holds")


def number(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rows(parts: Mapping[str, Figures]) -> list[tuple[str, ...]]:
    """One for each bar whose part was run."""
    return [_row(bar, parts[bar.part].by_name.get(bar.figure)) for bar in BARS if bar.part in parts]


def _row(bar: Bar, figure: Figure | None) -> tuple[str, ...]:
    sign = "≥ " if bar.at_least else "≤ "
    measured = number(figure.value) if figure else "-"
    verdict = bar.verdict(figure)
    return (bar.part, bar.figure, sign + number(bar.must), number(bar.aim), measured, spread(figure), verdict)


def spread(figure: Figure | None) -> str:
    if figure is None or figure.rounds == 1:
        return "-"
    return f"{number(figure.low)} .. {number(figure.high)} ({figure.rounds})"


def text(parts: Mapping[str, Figures]) -> str:
    """For a terminal: the bars, then every other figure, then notes."""
    said = _aligned([HEAD, *rows(parts)])
    barred = {bar.figure for bar in BARS}
    for name, part in parts.items():
        others = [(n, number(f.value), spread(f)) for n, f in part.by_name.items() if n not in barred]
        if others:
            said += f"\n\n{name}\n" + _aligned(others)
        said += "".join(f"\n  {note}" for note in part.notes)
    return said


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)


def summary(parts: Mapping[str, Figures]) -> str:
    """How many bars hold, and which do not."""
    verdicts = [(row[1], row[-1]) for row in rows(parts)]
    held = [what for what, verdict in verdicts if verdict in ("must", "aim")]
    aimed = [what for what, verdict in verdicts if verdict == "aim"]
    lines = [f"{len(held)} of {len(verdicts)} bars hold, {len(aimed)} of them with their aim."]
    for title, wanted in (("Do not hold", "does not hold"), ("Not measured", UNKNOWN)):
        names = [what for what, verdict in verdicts if verdict == wanted]
        lines += [f"{title}: {'; '.join(names)}."] if names else []
    return "\n".join(lines)
