"""Files that are there whole or not at all, and locks that name their holder. Knows nothing of what is in them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from forge.storage import crash
from forge.storage.errors import Unavailable

TEMPORARY: Final = ".tmp-"
"""Begins the name of a file that is being written; readers of Parquet folders skip names with a leading dot."""


def write_whole(path: Path, write: Callable[[Path], object], *, crash_name: str = "file") -> None:
    """``write`` makes the file under another name in the same folder; flushed, it appears by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        write(temporary)
        crash.point(f"{crash_name}-written")
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)
    crash.point(f"{crash_name}-renamed")


def fsync_dir(directory: Path) -> None:
    """A new or renamed file's name is on disk only after this."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_file(path: Path, message: str) -> int:
    """Takes an exclusive lock for the life of the process and leaves our pid in the file for the next one to name.

    Gives the open file; closing it gives the lock free.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise Unavailable(f"{message} by pid {holder}", "stop that process, or use another --data directory") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
