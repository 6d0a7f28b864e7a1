"""Process trees: the CPU time and memory they take, the core they run on, and real-time priority for short bursts.

The one non-obvious fact: a process's CPU clock is read by ``clock_gettime`` with an id made of its pid. It counts
nanoseconds of all its threads, those that have ended included; ``/proc/PID/stat`` counts in hundredths of a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

GONE = (ProcessLookupError, FileNotFoundError, OSError)
PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_SCHED = 2
"""CPUCLOCK_SCHED of the kernel's clock ids."""


def tree(roots: Iterable[int]) -> list[int]:
    """The processes and all below them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(*GONE):
                children.setdefault(_parent(entry), []).append(int(entry.name))
    found: list[int] = []
    rest = list(roots)
    while rest:
        pid = rest.pop()
        found.append(pid)
        rest += children.get(pid, [])
    return found


def _parent(entry: Path) -> int:
    return int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def cpu_ns(pids: Iterable[int]) -> int:
    """Of each process itself, and of its children that have ended."""
    total = 0
    for pid in pids:
        with suppress(*GONE):
            total += time.clock_gettime_ns((~pid << 3) | _SCHED)
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))
    return total


def rss_kb(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(*GONE):
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB
    return total


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    except GONE:
        return []


def pin(pids: Iterable[int], cores: set[int]) -> None:
    for thread in _threads(pids):
        with suppress(*GONE):
            os.sched_setaffinity(thread, cores)


def real_time(pids: Iterable[int], on: bool) -> None:
    """First in, first out, before every ordinary process of the machine: only for bursts below a second."""
    policy, priority = (os.SCHED_FIFO, 1) if on else (os.SCHED_OTHER, 0)
    for thread in _threads(pids):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(thread, policy, os.sched_param(priority))


def may_real_time() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except PermissionError:
        return False
    return True


def _threads(pids: Iterable[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        with suppress(*GONE):
            found += [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return found


def until(is_so: Callable[[], bool], what: str, seconds: float, step: float = 0.02) -> None:
    """Raises ``TimeoutError`` naming what did not come."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(step)
