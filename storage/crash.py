"""Named points at which a test may kill the process, to prove that nothing is lost or doubled there.

``FORGE_CRASH_AT=<name>`` or ``<name>:<n>`` (the n-th time) in the environment; without it every point is nothing.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "FORGE_CRASH_AT"

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    at, _, count = wanted.partition(":")
    _passed[name] += 1
    if name == at and _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
