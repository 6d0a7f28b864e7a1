"""What a run leaves for people and programs: ``metrics.jsonl`` and TensorBoard's event file, a line a step.

Each line is flushed when it is written, so that a run that dies leaves what it saw. A run that goes on from a
checkpoint drops the lines of the steps that are made again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

import msgspec
import numpy as np

from forge.trainer.advantage import Selection
from forge.trainer.config import StepStats

FILE: Final = "metrics.jsonl"
SESSIONS: Final = "sessions.jsonl"
"""Beside it: the sessions of every step, what each earned and what it weighed."""
ROLLOUTS: Final = "rollouts.jsonl"
"""Of a run that draws its own sessions: a line a batch (``forge.rollouts.feed``)."""
EVENTS: Final = "tensorboard"
"""Folder beside it: ``tensorboard --logdir OUT/tensorboard``."""


class Metrics:
    """``with Metrics(out, step) as metrics``: ``step`` steps of the run are made already. ``seen`` hears every line."""

    def __init__(
        self, directory: Path, step: int = 0, seen: Callable[[dict[str, Any]], None] = lambda line: None
    ) -> None:
        self.path = directory / FILE
        self._seen = seen
        self._step = step

    def __enter__(self) -> Self:
        from tensorboardX import SummaryWriter

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._sessions = (self._reopened(path) for path in (self.path, self.path.with_name(SESSIONS)))
        purge = self._step + 1 if self._step else None
        self._events = SummaryWriter(str(self.path.parent / EVENTS), purge_step=purge)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._sessions.close()
        self._events.close()

    def write(self, step: int, batch: int, version: int, chosen: Selection, stats: StepStats) -> None:
        line = line_of(step, batch, version, chosen, stats)
        for file, lines in ((self._sessions, sessions_of(step, chosen)), (self._file, [line])):
            file.write(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
            file.flush()
        for name, value in line.items():
            if name not in ("step", "time") and isinstance(value, int | float):
                self._events.add_scalar(name, value, step)
        self._events.flush()
        self._seen(line)

    def _reopened(self, path: Path) -> BinaryIO:
        keep(path, lambda line: line["step"] <= self._step)
        return path.open("ab")


def sessions_of(step: int, chosen: Selection) -> list[dict[str, Any]]:
    first = {row.session_id: row for row in reversed(chosen.rows)}
    return [
        {
            "step": step,
            "run_id": first[session].run_id,
            "session_id": session,
            "task_id": first[session].task_id,
            "group_id": first[session].group_id,
            "reward": first[session].reward,
            "advantage": advantage,
            "tokens": chosen.tokens[session],
        }
        for session, advantage in chosen.advantages.items()
    ]


def line_of(step: int, batch: int, version: int, chosen: Selection, stats: StepStats) -> dict[str, Any]:
    advantages = list(chosen.advantages.values())
    return {
        "step": step,
        "batch": batch,
        "time": time.time(),
        "version": version,
        "rows": len(chosen.rows),
        "sessions": len(chosen.advantages),
        "rows_per_session": len(chosen.rows) / len(chosen.advantages),
        "groups_kept": chosen.groups_kept,
        "groups_dropped": dict(chosen.groups_dropped),
        "sessions_dropped": dict(chosen.sessions_dropped),
        "rows_dropped": dict(chosen.rows_dropped),
        "reward_mean": _number(np.mean(chosen.rewards)) if chosen.rewards else None,
        "reward_std": _number(np.std(chosen.rewards)) if chosen.rewards else None,
        "positive_share": _number(np.mean(np.asarray(chosen.rewards) > 0)) if chosen.rewards else None,
        "advantage_mean": _number(np.mean(advantages)),
        "advantage_std": _number(np.std(advantages)),
        "advantage_max": _number(np.max(np.abs(advantages))),
        "staleness_mean": _number(np.mean(chosen.staleness)) if chosen.staleness else None,
        "staleness_max": max(chosen.staleness, default=None),
        "session_tokens": stats.tokens / len(chosen.advantages),
        "masked_share": stats.tokens / stats.tokens_read,
        "tokens_per_second": stats.tokens_read / stats.seconds,
        **dataclasses.asdict(stats),
    }


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a ``metrics.jsonl``; a last one that was cut short does not count."""
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [msgspec.json.decode(line) for line in whole.splitlines() if line]


def keep(path: Path, made: Callable[[dict[str, Any]], bool]) -> None:
    """Drops the lines of what is made again; by rename, so that a run that dies now loses none."""
    kept = [line for line in read(path) if made(line)]
    building = path.with_name(f".{path.name}.tmp")
    building.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in kept))
    building.replace(path)


def _number(value: np.floating) -> float:
    return float(value)
