"""Files that are there whole or not at all, and locks that name their holder. Knows nothing of what is in them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forge.storage import crash
from forge.storage.errors import Unavailable

TEMPORARY: Final = ".*.tmp"
"""Names of files that are being written. Neither ``*.parquet`` nor readers of Parquet folders, which skip a leading
dot, see them."""


def temporary(path: Path, author: str = "") -> Path:
    return path.with_name(f".{path.name}{author}.tmp")


def write_whole(
    path: Path, write: Callable[[Path], object], *, crash_name: str = "file", author: str = "", flush_name: bool = True
) -> None:
    """``write`` makes the file under another name in the same folder; flushed, it appears by rename. ``author`` tells
    those apart who may write the same file at once. Without ``flush_name`` its name may be gone after a power cut until
    the caller has flushed its folder, for many files at once."""
    make_folder(path.parent)
    unfinished = temporary(path, author)
    try:
        write(unfinished)
        crash.point(f"{crash_name}-written")
        fd = os.open(unfinished, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if flush_name:
        fsync_dir(path.parent)
    crash.point(f"{crash_name}-renamed")


def make_folder(folder: Path) -> None:
    """There when this returns, after a power cut too."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        fsync_dir(folder.parent)


def fsync_dir(directory: Path) -> None:
    """A new or renamed file's name is on disk only after this."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def held(path: Path, who: str = "") -> Iterator[None]:
    """An exclusive lock that is waited for; ``who`` stands in the file meanwhile."""
    fd = _locked(path)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, who.encode(), 0)
        yield
    finally:
        os.close(fd)


def _locked(path: Path) -> int:
    """Of the file that is there once the lock is had: it may have been taken from a stopped holder meanwhile."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if same_file(path, fd):
            return fd
        os.close(fd)


def take_from(path: Path, who: str) -> None:
    """Ends the hold of a holder by that name, of which is known that it is stopped: the next one gets a new file."""
    try:
        if path.read_text() == who:
            path.unlink()
    except FileNotFoundError:
        return


def same_file(path: Path, fd: int) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)


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
