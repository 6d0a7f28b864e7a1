"""How long a fault test runs, and from which seed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SOAK: Final = os.environ.get("FORGE_SOAK") == "1"
LONG: Final = 3600
"""Seconds: the limit of a test that is long only in a soak."""


def rounds(ci: int, soak: int) -> int:
    return soak if SOAK else ci


def figures(quick: int, ci: int, soak: int) -> pytest.MarkDecorator:
    """Gives a property test its number of ``examples``: a few where fast tests run, the plan's where slow ones do."""
    marks = (pytest.mark.process, pytest.mark.timeout(LONG if SOAK else 300))
    return pytest.mark.parametrize(
        "number", [pytest.param(quick, id="quick"), pytest.param(rounds(ci, soak), id="plan", marks=marks)]
    )


def examples(number: int, strategy: st.SearchStrategy[Any], body: Callable[[Any], None]) -> None:
    """Tries ``body`` with so many values; what fails is made small."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    settings(max_examples=number, deadline=None, suppress_health_check=checks, database=None)(given(strategy)(body))()


def chance(name: str) -> random.Random:
    """A source of chance whose seed a failing test shows; ``FORGE_SEED`` repeats it."""
    seed = int(os.environ.get("FORGE_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"{name}: FORGE_SEED={seed}")
    return random.Random(seed)
