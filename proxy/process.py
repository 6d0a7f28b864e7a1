"""A proxy's or a decoder's process: its event loop, and how it uses memory, settled once, when it begins its work.

Owns the allocator's and the collector's settings, and nothing of what is stored. The one non-obvious fact: the C
library gives every block of more than 128 KiB back to the kernel when it is freed, so each copy of a long body pays for
fresh pages again, some thirty times what the copy itself costs.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MMAP_THRESHOLD: Final = -3
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
"""glibc's ``mallopt`` names."""
KEPT_BYTES: Final = 64 << 20
"""Free memory that the process keeps for the next bodies."""
BLOCK_BYTES: Final = 32 << 20
"""Larger blocks still come from the kernel and go back to it: the most that glibc allows here."""
YOUNG_OBJECTS: Final = 50_000
"""Objects made since the last look for cycles: calls leave hardly any behind."""


def settle() -> None:
    """Call it once, when everything that lives as long as the process is there."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        pass  # another C library, with other habits
    else:
        mallopt(_MMAP_THRESHOLD, BLOCK_BYTES)
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(_TOP_PAD, BLOCK_BYTES // 2)
    collect_seldom()


def collect_seldom() -> None:
    """What is there stays; cycles are looked for in what is new, and seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)


def run(main: Coroutine[Any, Any, T]) -> T:
    """The process's event loop: uvloop's where it is there."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
