"""The machine's free memory, written to once before anything is measured on it.

The one non-obvious fact: a virtual machine is given a page of memory by its host when it first writes there, and loses
it again some time after it is free. That costs more than all that a call does with the page; and who records takes
pages all the time, who only passes bytes on takes none. A long running server's pages are the cache of its files: so
here a file fills them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from bench.figures import Figures
from bench.setting import Setting

LEFT: Final = 1 << 30
"""Bytes of memory that stay free."""
SPARE: Final = 16 << 30
"""Bytes of the disk that do."""
MOST: Final = 32 << 30
ZEROS: Final = bytes(1 << 20)


def touch(set_: Setting, figures: Figures) -> None:
    """The file stays until the end of the run: what is deleted is free again."""
    if set_.quick:
        return
    size = min(_free() - LEFT, MOST, shutil.disk_usage(set_.work).free - SPARE)
    path = set_.work / "pages"
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(ZEROS)):
            file.write(ZEROS)
        os.fsync(file)  # or the disk is busy with it while bursts run
    figures.note(f"free memory was written to before: {max(0, size) >> 20:,} MB")


def _free() -> int:
    """Bytes of memory that hold nothing, not even what was read of files."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemFree:"))
