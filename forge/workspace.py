"""Files that a confined program has left, taken over without trusting them.

Everything below a job's folders was written by a model. So links are never followed, only regular files are read,
set-id bits are dropped, and there is a limit in bytes and files. Call these only when the job's processes have ended.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

COPY_BYTES_MAX: Final = 1 << 30
COPY_FILES_MAX: Final = 100_000
"""Of a workspace; a larger one is not graded."""
TRANSCRIPT_BYTES_MAX: Final = 256 << 20


class TooLarge(Exception):
    """A workspace over the limits."""


def copy(source: Path, target: Path) -> None:
    """Copy a workspace into the existing folder ``target``; links as links, sockets and pipes left out."""
    size = 0
    for count, (folder, entry) in enumerate(_entries(source), 1):
        info = entry.stat(follow_symlinks=False)
        size += info.st_size
        if size > COPY_BYTES_MAX or count > COPY_FILES_MAX:
            raise TooLarge(f"the workspace has over {COPY_BYTES_MAX >> 20} MiB or {COPY_FILES_MAX} files")
        to = target / folder / entry.name
        if stat.S_ISLNK(info.st_mode):
            to.symlink_to(os.readlink(entry.path))
        elif stat.S_ISDIR(info.st_mode):
            to.mkdir()
        elif stat.S_ISREG(info.st_mode):
            _copy_file(Path(entry.path), to)
            to.chmod(info.st_mode & 0o777 | stat.S_IRUSR | stat.S_IWUSR)


def transcripts(home: Path, globs: Sequence[str], target: Path) -> None:
    """Copy the harness's own records into ``target``, at the same paths. ``*`` in a glob crosses folders."""
    left = TRANSCRIPT_BYTES_MAX
    for folder, entry in _entries(home):
        name = str(folder / entry.name)
        if entry.is_file(follow_symlinks=False) and any(fnmatchcase(name, glob) for glob in globs):
            left -= entry.stat(follow_symlinks=False).st_size
            if left < 0:
                return
            (target / folder).mkdir(parents=True, exist_ok=True)
            _copy_file(Path(entry.path), target / name)


def remove(folder: Path) -> None:
    """Delete a job's folder, also where the job took away its own permissions or nested folders without end."""
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, "--", str(folder)], stderr=subprocess.DEVNULL, check=False)


def _entries(root: Path) -> Iterator[tuple[Path, os.DirEntry[str]]]:
    """Every entry below ``root`` with its folder, relative to it; a folder before what it holds."""
    waiting = [Path()]
    while waiting:
        folder = waiting.pop()
        (root / folder).chmod(stat.S_IRWXU)
        with os.scandir(root / folder) as entries:
            found = sorted(entries, key=lambda each: each.name)
        for entry in found:
            yield folder, entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(folder / entry.name)


def _copy_file(source: Path, target: Path) -> None:
    source.chmod(stat.S_IRUSR)  # it is ours, whatever the job made of its mode
    with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb") as reader, target.open("wb") as writer:
        shutil.copyfileobj(reader, writer)
