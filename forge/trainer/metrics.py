"""``metrics.jsonl``: one line per step, flushed when it is written, so that a run that dies leaves what it saw."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self

import msgspec
import numpy as np

from forge.trainer.advantage import Selection
from forge.trainer.config import StepStats

FILE: Final = "metrics.jsonl"


class Metrics:
    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, step: int, version: int, chosen: Selection, stats: StepStats) -> None:
        assert self._file is not None
        advantages = list(chosen.advantages.values())
        line = {
            "step": step,
            "time": time.time(),
            "version": version,
            "rows": len(chosen.rows),
            "sessions": len(chosen.advantages),
            "groups_kept": chosen.groups_kept,
            "groups_dropped": dict(chosen.groups_dropped),
            "sessions_dropped": dict(chosen.sessions_dropped),
            "rows_dropped": dict(chosen.rows_dropped),
            "reward_mean": _number(np.mean(chosen.rewards)),
            "reward_std": _number(np.std(chosen.rewards)),
            "advantage_mean": _number(np.mean(advantages)),
            "advantage_std": _number(np.std(advantages)),
            "advantage_max": _number(np.max(np.abs(advantages))),
            "staleness_mean": _number(np.mean(chosen.staleness)) if chosen.staleness else None,
            "staleness_max": max(chosen.staleness, default=None),
            **dataclasses.asdict(stats),
        }
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


def _number(value: np.floating) -> float:
    return float(value)
