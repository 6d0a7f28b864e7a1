"""One measured burst: so many calls through a target, and the CPU time that the target took for them.

Owns the order of clocks and priorities. The one non-obvious fact: for a burst the stub, the clients and the target run
first-in-first-out before all else on the machine, so that neighbours blur neither ratios nor latencies.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import process
from bench.setting import Setting, tool
from bench.targets.base import Running

MAX_S = 60.0
REAL_TIME_S = 0.8
"""Longer bursts run as everyone else: the kernel takes the priority away after 0.95 s."""


@dataclass(frozen=True, slots=True)
class Load:
    body: Path
    path: str
    clients: int
    calls: int
    events: int = 0
    """Stamped events in each answer; 0: whole answers."""
    seconds: float = MAX_S
    keep: Path | None = None
    """Where the bodies of the answers go."""


@dataclass(frozen=True, slots=True)
class Burst:
    calls: int
    events: int
    cpu_ns: int
    """Of the target, on the path of calls."""
    aside_ns: int
    """Behind it: the decoder's, until it had caught up."""
    p50_us: float
    p99_us: float
    event_p50_us: float
    event_p99_us: float

    @property
    def us_per_call(self) -> float:
        return self.cpu_ns / 1000 / self.calls

    @property
    def us_per_event(self) -> float:
        """Of those that the policy server sent: a dialect may say the text again at the end."""
        return self.cpu_ns / 1000 / self.events


class Failed(Exception):
    """A target that did not serve every call as it should."""


def burst(set_: Setting, stub_pid: int, target: Running, load: Load, *, real_time: bool = True) -> Burst:
    """Raises ``Failed`` if a call was not answered whole."""
    headers = set_.work / "headers"
    headers.write_text("\n".join(target.headers(load.clients)) + "\n")
    pids = target.pids()
    process.pin(pids, set_.target_cores)
    process.pin(target.aside(), set_.load_cores)
    first = [stub_pid, *pids] if set_.real_time and real_time else []
    aside = process.cpu_ns(target.aside())
    process.real_time(first, True)
    try:
        before = process.cpu_ns(pids)
        said = _run(set_, target, load, headers, bool(first))
        after = process.cpu_ns(pids)
    finally:
        process.real_time(process.tree(first), False)
    if said["done"] != load.calls:
        why = f"{said['errors']} failed, the last with {said['status']}"
        raise Failed(f"{target.name}: {said['done']} of {load.calls} calls were served in {load.seconds:g} s; {why}")
    target.calls += said["done"]
    target.settle()
    return Burst(
        said["done"],
        said["done"] * load.events,
        after - before,
        process.cpu_ns(target.aside()) - aside,
        said["p50"],
        said["p99"],
        said["event_p50"],
        said["event_p99"],
    )


def _run(set_: Setting, target: Running, load: Load, headers: Path, first: bool) -> dict[str, Any]:
    command = [str(tool("load")), str(target.port), target.prefix + load.path, str(load.body), str(load.clients)]
    command += [str(load.calls), str(load.seconds), str(headers), str(load.events), "0"]
    command += [str(load.keep)] if load.keep else []

    def begin() -> None:
        os.sched_setaffinity(0, set_.load_cores)
        if first:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

    done = subprocess.run(command, capture_output=True, preexec_fn=begin, check=False)
    if done.returncode:
        raise Failed(f"{target.name}: {done.stderr.decode(errors='replace').strip()}")
    return dict(json.loads(done.stdout))
