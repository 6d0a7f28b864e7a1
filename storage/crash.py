"""Named points at which a test may kill the process, to prove that nothing is lost or doubled there.

``FORGE_CRASH_AT=<name>`` or ``<name>:<n>`` (the n-th time) in the environment of a process that
starts; without it every point is nothing.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "FORGE_CRASH_AT"

_passed: Counter[str] = Counter()
at: str | None = None
"""The point to die at; None: nowhere."""
_time = 1


def arm(wanted: str | None) -> None:
    """The point to die at, as the variable would name it."""
    global at, _time
    name, _, count = (wanted or "").partition(":")
    at, _time = name or None, int(count or 1)


def point(name: str) -> None:
    if at is None:
        return
    _passed[name] += 1
    if name == at and _passed[name] == _time:
        os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get(VARIABLE))
