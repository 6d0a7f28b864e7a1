"""The user's cache folder, where models and harnesses are made once, and the lock under which each is made."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """``$FORGE_CACHE``, by default ``~/.cache/forge``."""
    return Path(os.environ.get("FORGE_CACHE") or Path.home() / ".cache" / "forge").absolute()


@contextmanager
def making(thing: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """One process at a time makes ``thing``; ``waiting`` is called if another is at it already."""
    thing.parent.mkdir(parents=True, exist_ok=True)
    with (thing.parent / f".{thing.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
