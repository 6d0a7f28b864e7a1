"""A claim to be the only one at work, which a successor can take from a holder that does nothing any more.

A lock dies with its process, but not with one that is stopped or hangs: so the holder also gives signs of life, and
whoever watched it give none may put a claim of its own in its place. The old holder, should it go on, finds before
each thing it publishes that the claim is not its own. Knows nothing of what is claimed. The one non-obvious fact:
silence is measured by the watcher's own clock, so that no jump of the wall clock takes a claim from anyone.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, Self

from forge.storage.errors import Unavailable
from forge.storage.files import lock_file, same_file

SILENT_S: Final = 30.0
"""Without a sign of life for so long, a holder is taken for stopped. Its longest step is far below."""


class Fenced(Unavailable):
    """Another one has taken over: nothing may be published any more."""


class Lease:
    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    @classmethod
    def take(cls, path: Path, message: str) -> Self:
        """Raises ``Unavailable``, which names the holder, while another process has it."""
        return cls(path, lock_file(path, message))

    @classmethod
    def take_over(cls, path: Path) -> Self:
        """From a holder that ``Watch`` has found silent. Of two that do so at once the last one has it."""
        own = path.with_name(f".{path.name}.{os.getpid()}")
        fd = lock_file(own, f"{own} is in use")
        os.replace(own, path)
        return cls(path, fd)

    def sign(self) -> None:
        """Shows that we live. Raises ``Fenced``."""
        if not same_file(self._path, self._fd):
            raise Fenced(f"another process has taken over {self._path}", "nothing is lost; it goes on from here")
        os.utime(self._fd)

    def release(self) -> None:
        os.close(self._fd)


class Watch:
    """Looks at a holder's signs of life now and then."""

    def __init__(self, path: Path, silent_s: float = SILENT_S) -> None:
        self._path = path
        self._silent_s = silent_s
        self._seen: tuple[int, int] | None = None
        self._since = time.monotonic()

    def is_silent(self) -> bool:
        """Whether nothing has changed for so long."""
        there = self._path.stat()
        seen = there.st_ino, there.st_mtime_ns
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        return time.monotonic() - self._since >= self._silent_s
