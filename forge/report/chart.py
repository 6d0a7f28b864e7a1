"""A line chart as SVG text. Pure: numbers in, text out; what is None or no number to draw is a gap in the line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

WIDTH: Final = 460
HEIGHT: Final = 200
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 20, 24
"""Room for the labels, in pixels."""
LETTER: Final = 5
"""Width of a letter of the legend, about."""
TICKS: Final = 4
GREATEST: Final = 1e30
"""Of a value; also what infinity and NaN fail at."""
COLOURS: Final = ("#2458a8", "#c0442c", "#2c8a4b", "#8a5a00", "#6a3fa0")

Points = Sequence[tuple[float, float | None]]


def chart(title: str, series: Mapping[str, Points]) -> str:
    """One ``figure``; series without a number are left out, and a chart without any is the empty text."""
    told = {name: [(x, y if _drawable(y) else None) for x, y in points] for name, points in series.items()}
    known = {name: points for name, points in told.items() if any(y is not None for _, y in points)}
    if not known:
        return ""
    xs = [x for points in known.values() for x, _ in points]
    ys = [y for points in known.values() for _, y in points if y is not None]
    scale = _Scale(min(xs), max(xs), *_padded(min(ys), max(ys)))
    lines = "".join(_line(points, scale, COLOURS[at % len(COLOURS)]) for at, points in enumerate(known.values()))
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10" role="img" '
        f'aria-label="{escape(title)}">{_legend(known)}{_axes(scale)}{lines}</svg></figure>'
    )


def picture(title: str, series: Mapping[str, Points]) -> str:
    """The same as an SVG file."""
    figure = chart(title, series)
    drawing = figure[figure.index("<svg") + 4 : figure.index("</figure>")]
    return f'<svg xmlns="http://www.w3.org/2000/svg"{drawing}\n'


def _legend(names: Iterable[str]) -> str:
    parts, at = [], LEFT
    for number, name in enumerate(names):
        parts.append(f'<text x="{at}" y="12" fill="{COLOURS[number % len(COLOURS)]}">{escape(name)}</text>')
        at += LETTER * (len(name) + 3)
    return "".join(parts)


class _Scale:
    def __init__(self, x_low: float, x_high: float, y_low: float, y_high: float) -> None:
        self.x_low, self.x_high, self.y_low, self.y_high = x_low, x_high, y_low, y_high

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low or 1.0
        return LEFT + (value - self.x_low) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def _padded(low: float, high: float) -> tuple[float, float]:
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _axes(scale: _Scale) -> str:
    parts = []
    for number in range(TICKS + 1):
        value = scale.y_low + (scale.y_high - scale.y_low) * number / TICKS
        at = scale.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 3:.1f}" text-anchor="end">{value:.3g}</text>')
    for value, anchor in ((scale.x_low, "start"), (scale.x_high, "end")):
        parts.append(f'<text x="{scale.x(value):.1f}" y="{HEIGHT - 6}" text-anchor="{anchor}">{value:g}</text>')
    return "".join(parts)


def _line(points: Points, scale: _Scale, colour: str) -> str:
    """Its unbroken pieces; a piece of one point is a dot."""
    pieces: list[list[str]] = [[]]
    for x, y in points:
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{scale.x(x):.1f},{scale.y(y):.1f}")
    return "".join(_piece(piece, colour) for piece in pieces if piece)


def _piece(piece: Sequence[str], colour: str) -> str:
    if len(piece) == 1:
        x, y = piece[0].split(",")
        return f'<circle cx="{x}" cy="{y}" r="2" fill="{colour}"/>'
    return f'<polyline points="{" ".join(piece)}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _drawable(value: float | None) -> bool:
    return value is not None and abs(value) < GREATEST
