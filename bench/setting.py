"""How one run of the bench is set: rounds, sizes, cores, where it works, and its own tools.

Owns the scratch folder and the compiled C programs. Knows no target.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench import process

CACHE: Final = Path.home() / ".cache" / "forge" / "bench"
"""Compiled programs, and the environments of peers."""
SOURCES: Final = Path(__file__).parent / "c"


class Missing(Exception):
    """Something that a row needs is not here. ``args``: why, and how to get it."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(f"{why}; {hint}")


@dataclass(frozen=True, slots=True)
class Setting:
    work: Path
    """Scratch, on a real disk; removed at the end."""
    rounds: int = 5
    quick: bool = False
    """Tiny counts: shows that everything runs, measures nothing."""
    minutes: float = 3.0
    """Of the open streams."""
    targets: tuple[str, ...] = ()
    """Empty: all."""
    target_cores: set[int] = field(default_factory=set)
    load_cores: set[int] = field(default_factory=set)
    real_time: bool = False
    profile: Path | None = None
    """Where the proxy writes what cProfile saw of it; it is then several times slower."""

    def say(self, text: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    def wants(self, target: str) -> bool:
        return not self.targets or target in self.targets


@contextmanager
def setting(
    *, rounds: int, quick: bool, minutes: float, targets: tuple[str, ...], where: Path | None, profile: Path | None
) -> Iterator[Setting]:
    """One core for the target, the others for the stub, the clients and the decoder."""
    cores = sorted(os.sched_getaffinity(0))
    work = Path(tempfile.mkdtemp(prefix="forge-bench-", dir=where))
    try:
        yield Setting(
            work,
            rounds=rounds,
            quick=quick,
            minutes=minutes,
            targets=targets,
            target_cores={cores[0]},
            load_cores=set(cores[1:] or cores),
            profile=profile,
            real_time=len(cores) > 1 and process.may_real_time(),
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def tool(name: str) -> Path:
    """``stub`` or ``load``, compiled once for each state of its source."""
    source = SOURCES / f"{name}.c"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    path = CACHE / f"{name}-{digest}"
    if not path.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise Missing("there is no C compiler", "apt-get install gcc libc6-dev")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        subprocess.run([compiler, "-O2", "-Wall", "-o", fresh, source], check=True)
        fresh.rename(path)
    return path


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def started(command: list[str], log: Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is ended at the end, first kindly. Its output goes to ``log``."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(90)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextmanager
def stub(set_: Setting, folder: Path) -> Iterator[tuple[int, int]]:
    """The scripted policy server over a folder of answers: (pid, port)."""
    port = free_port()
    with started([str(tool("stub")), str(port), str(folder)], set_.work / "stub.log") as running:
        process.pin([running.pid], set_.load_cores)
        process.until(lambda: answers(port), "the stub answers", 10)
        yield running.pid, port
