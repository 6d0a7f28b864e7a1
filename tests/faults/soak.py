"""How long a fault test runs, and from which seed."""

from __future__ import annotations

import os
import random
from typing import Final

SOAK: Final = os.environ.get("FORGE_SOAK") == "1"


def rounds(ci: int, soak: int) -> int:
    return soak if SOAK else ci


def chance(name: str) -> random.Random:
    """A source of chance whose seed a failing test shows; ``FORGE_SEED`` repeats it."""
    seed = int(os.environ.get("FORGE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"{name}: FORGE_SEED={seed}")
    return random.Random(seed)
