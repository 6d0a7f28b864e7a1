"""What a proxy knows of its own health beyond one call: the disk, the decoder, and how fast things go.

Owns the looking (files are read in a thread, every few seconds) and what was seen last; who asks gets that at once.
The non-obvious fact: the decoder is another process, so what it counts comes from its checkpoint, which it replaces
with every interval: each row is counted once there, also over crashes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from forge.proxy.config import ProxyConfig
from forge.proxy.recording.decoding import DecoderProcess
from forge.proxy.recording.recorder import Recorder
from forge.proxy.sessions.registry import Registry
from forge.storage.checkpoint import Counts, progress
from forge.storage.journal import Position, journal_dir, segment_path

RATE_S: Final = 30.0
"""What speeds are taken over: the decoder counts with each cut, every few seconds."""
DISK_SHARE: Final = 50
"""A measurement that took a second is followed by this many without one."""
PARTS: Final = ("journal", "calls", "sessions", "samples", "media", "harness", "policy")


@dataclass(slots=True)
class Disk:
    """Bytes."""

    used: dict[str, int] = field(default_factory=dict)
    """By folder of the data directory; what stands elsewhere in it is ``other``."""
    free: int | None = None

    @property
    def total(self) -> int:
        return sum(self.used.values())


@dataclass(slots=True)
class Decoded:
    """How far the decoder is behind this proxy's journal."""

    lag_s: float = 0.0
    """Since it was first seen behind a cut that it has not passed yet."""
    lag_bytes: int = 0
    """Journal that is in no part yet; up to a cut's worth is usual."""
    counts: Counts = field(default_factory=Counts)


class Sample(NamedTuple):
    at: float
    calls: int
    tokens: int


class Vitals:
    def __init__(self, config: ProxyConfig, recorder: Recorder, registry: Registry) -> None:
        self._config = config
        self._recorder = recorder
        self._registry = registry
        self.started = time.monotonic()
        self.disk = Disk()
        self.decoded = Decoded()
        self.decoder: DecoderProcess | None = None
        """None where another process decodes, or none."""
        self._behind: tuple[Position, float] | None = None
        """A cut that the decoder has not passed, and when that was first seen."""
        self._samples: deque[Sample] = deque()
        self.disk_due = 0.0
        """When the disk is measured next."""

    async def run(self, calls: Callable[[], int]) -> None:
        """Looks as long as the proxy runs. ``calls``: how many have ended."""
        while True:
            await self.look(calls())
            await asyncio.sleep(self._config.limits.vitals_s)

    async def look(self, calls: int) -> None:
        self.decoded = await asyncio.to_thread(self._decoded)
        now = time.monotonic()
        self._samples.append(Sample(now, calls, self.decoded.counts.output_tokens))
        while self._samples[0].at < now - RATE_S:
            self._samples.popleft()
        if now >= self.disk_due:
            await self.look_at_disk()

    async def look_at_disk(self) -> None:
        began = time.monotonic()
        self.disk = await asyncio.to_thread(measure, self._config.data)
        took = time.monotonic() - began
        self.disk_due = began + max(self._config.limits.disk_s, took * DISK_SHARE)
        self._registry.refuses = self.over_budget

    @property
    def over_budget(self) -> str:
        """Why no new session may be opened; empty if one may."""
        return refusal(self.disk.total, self._config.disk_budget)

    @property
    def rates(self) -> tuple[float, float]:
        """Calls ended, and output tokens decoded, per second."""
        if len(self._samples) < 2:
            return 0.0, 0.0
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at - first.at
        return (last.calls - first.calls) / seconds, max(0, last.tokens - first.tokens) / seconds

    def _decoded(self) -> Decoded:
        journal, cut = self._recorder.journal, self._recorder.last_cut
        found = progress(self._config.data)
        mark = Position(*found.mark(journal.writer).position)
        now = time.monotonic()
        if self._behind is not None and mark >= self._behind[0]:
            self._behind = None
        if self._behind is None and cut is not None and mark < cut:
            self._behind = (cut, now)
        lag_s = now - self._behind[1] if self._behind is not None else 0.0
        lag = _bytes_between(journal_dir(self._config.data, journal.writer), mark, journal.end)
        return Decoded(lag_s, lag, found.counts)


def refusal(used: int, budget: int | None) -> str:
    """Why no new session may be opened; empty if one may. In bytes of the data directory."""
    if budget is None or used < budget:
        return ""
    return f"the data directory holds {used} bytes, of a budget of {budget}"


def _bytes_between(directory: Path, start: Position, end: Position) -> int:
    """Of one writer's journal; segments that are gone count nothing."""
    whole = sum(_size(segment_path(directory, segment)) for segment in range(max(1, start.segment), end.segment))
    return max(0, whole + end.offset - start.offset)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def measure(data: Path) -> Disk:
    """Walks the data directory; what vanishes meanwhile counts nothing."""
    used: dict[str, int] = {}
    for folder, _, files in os.walk(data):
        top = Path(folder).relative_to(data).parts[:1]
        name = top[0] if top and top[0] in PARTS else "other"
        used[name] = used.get(name, 0) + sum(_size(Path(folder, file)) for file in files)
    try:
        status = os.statvfs(data)
    except OSError:
        return Disk(used)
    return Disk(used, status.f_bavail * status.f_frsize)
