"""Every bar, declared once: which figure it is about, what must hold and what is aimed at.

Pure. A bar whose figure was not measured is neither held nor missed: it has no row of its own invention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.figures import Figure

AIM, MUST, MISSED, UNKNOWN = "aim", "must", "does not hold", "not measured"


@dataclass(frozen=True, slots=True)
class Bar:
    part: str
    figure: str
    must: float
    aim: float
    at_least: bool = False
    """The figure is better the larger it is."""

    def verdict(self, figure: Figure | None) -> str:
        """By the median."""
        if figure is None:
            return UNKNOWN
        if self._holds(figure.value, self.aim):
            return AIM
        return MUST if self._holds(figure.value, self.must) else MISSED

    def _holds(self, value: float, bound: float) -> bool:
        return value >= bound if self.at_least else value <= bound


def _by_size(part: str, figure: str, musts: str, aims: str, *, at_least: bool = False) -> list[Bar]:
    sizes = ("2k+200", "32k+500", "128k+1000")
    return [
        Bar(part, f"{figure}, {size}", float(must), float(aim), at_least)
        for size, must, aim in zip(sizes, musts.split(), aims.split(), strict=True)
    ]


BARS: Final[tuple[Bar, ...]] = (
    *_by_size("path", "ours / nginx", "6 2.6 2.2", "3.3 1.5 1.2"),
    *_by_size("path", "ours / vllm-router", "1.5 1.5 1.5", "0.85 0.85 0.85"),
    *_by_size("path", "rllm / ours", "30 40 40", "70 85 75", at_least=True),
    Bar("path", "rllm / ours with decoder, 32k+500", 15, 30, at_least=True),
    *_by_size("path", "litellm / ours", "100 150 150", "250 380 370", at_least=True),
    Bar("path", "ours / nginx, added p50", 4, 2),
    Bar("path", "ours / nginx, added p99", 5, 2.5),
    Bar("stream", "ours / nginx, per event", 1.8, 1.4),
    Bar("stream", "litellm / ours, per event", 12, 20, at_least=True),
    Bar("stream", "responses / chat, per event", 3, 2),
    Bar("stream", "messages / chat, per event", 3, 2),
    Bar("open", "errors of 1,000 open streams", 0, 0),
    Bar("open", "memory slope, MB per minute", 2, 0.5),
    Bar("open", "decoder lag: last third / first third", 1.5, 1.2),
    Bar("memory", "256 open calls of 128k: RSS / (64 MB + 1.2 x bytes in flight)", 2, 1),
    Bar("strip", "answers that differ of 20,000", 0, 0),
    Bar("storage", "token bytes / f32 limit", 1.25, 1.06),
    Bar("storage", "token bytes / JSON lines", 1 / 30, 1 / 50),
    Bar("storage", "decode / naive", 1 / 5, 1 / 10),
    Bar("loader", "padded loader / bare pyarrow", 0.5, 0.9, at_least=True),
    Bar("close", "100 calls of 100k ids: seconds to samples", 1.0, 0.5),
)
