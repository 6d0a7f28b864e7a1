"""What a process takes of memory, in MB, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path


def rss_mb(pid: int) -> float:
    return _status(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """The most it ever had."""
    return _status(pid, "VmHWM")


def _status(pid: int, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return int(found[1]) / 1024
