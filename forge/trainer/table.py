"""What a person sees while it trains: on a terminal a table that grows by a row a step, elsewhere a line a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

ROWS: Final = 15
"""The last so many steps stay in sight."""
COLUMNS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "step": lambda line: str(line["step"]),
    "version": lambda line: str(line["version"]),
    "reward": lambda line: "-" if line["reward_mean"] is None else f"{line['reward_mean']:.3f}",
    "sessions": lambda line: str(line["sessions"]),
    "groups": lambda line: f"{line['groups_kept']}/{line['groups_kept'] + sum(line['groups_dropped'].values())}",
    "loss": lambda line: f"{line['loss']:+.4f}",
    "gradient": lambda line: f"{line['grad_norm']:.3f}",
    "entropy": lambda line: f"{line['entropy']:.3f}",
    "clipped": lambda line: f"{line['clip_low_fraction'] + line['clip_high_fraction']:.1%}",
    "off by": lambda line: f"{line['delta_log_prob_mean']:.1e}",
    "kl": lambda line: f"{line['kl_rollout_k3']:.1e}",
    "stale": lambda line: "-" if line["staleness_max"] is None else str(line["staleness_max"]),
    "tokens/s": lambda line: f"{line['tokens_per_second']:.0f}",
}


class LiveTable:
    """``with LiveTable(console) as table``: then ``table.say`` and ``table.step``."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lines: deque[Mapping[str, Any]] = deque(maxlen=ROWS)
        self._now = ""
        self._live = Live(console=console, get_renderable=self._shown, refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._now = ""
            self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays; of a step that runs, on a terminal, one that gives way to the next."""
        if self._console.is_terminal and text.startswith("step "):
            self._now = text
        else:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, line: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl``."""
        self._lines.append(line)

    def _shown(self) -> Group:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in COLUMNS:
            table.add_column(name, justify="right")
        for line in self._lines:
            table.add_row(*(cell(line) for cell in COLUMNS.values()))
        return Group(table, Text(self._now, style="dim"))
