"""Temporary folders that no command leaves behind: gone at its end, or at the start of the next one if it was killed.

Keys, sockets and what a model wrote lie in them. Each holds a file that its process keeps locked; the kernel gives the
lock free whatever the process dies of, so a lock that can be had is that of a dead one. The non-obvious fact: the file
appears locked, by rename, and a folder without it is nobody's to remove.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from forge import workspace
from forge.storage.errors import ForgeError

PREFIX: Final = "forge-"
LOCK: Final = ".forge-lock"


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A new folder that only this user can read; removed at the end, unless ``keep`` was called or an error names it
    as the place to look."""
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-"))
    held = -1
    try:
        held = _lock(folder)
        yield folder
    except ForgeError as error:
        if str(folder) in (error.hint or ""):
            keep(folder)
        raise
    finally:
        if held < 0 or (folder / LOCK).exists():
            workspace.remove(folder)
        if held >= 0:
            os.close(held)


def keep(folder: Path) -> None:
    """A folder of ``scratch`` stays, for a person to look at and delete."""
    (folder / LOCK).unlink()


def _lock(folder: Path) -> int:
    new = folder / f"{LOCK}.new"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    new.rename(folder / LOCK)
    return fd


def _sweep() -> None:
    """Remove what killed commands of this user left."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # no lock, another user's, or just being removed by its own process
            fd = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if folder.lstat().st_uid == os.getuid() and not folder.is_symlink():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    workspace.remove(folder)
            finally:
                os.close(fd)
