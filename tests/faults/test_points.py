"""R2: the writer is killed at each of its named points, at its first, second, ... time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from forge.storage.crash import VARIABLE
from tests.faults.soak import rounds
from tests.faults.writing import held, reopen, said, write

pytestmark = pytest.mark.process

POINTS = ["append", "appended", "flush", "flushed", "segment-head", "segment-begun"]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_point_the_writer_keeps_what_it_said(tmp_path: Path, point: str) -> None:
    promised: list[int] = []
    first, killed = 0, 0
    for nth in range(1, rounds(5, 100) + 1):
        done = write(tmp_path, first, 12, env={**os.environ, VARIABLE: f"{point}:{nth % 5 + 1}"})
        killed += done.returncode == -signal.SIGKILL
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert "refused" not in done.stdout
        promised += said(done.stdout)
        reopen(tmp_path)
        found = held(tmp_path)
        assert found == sorted(set(found)), "nothing twice, in order"
        gone = [number for number in promised if number not in found]
        assert all(number < min(found) for number in gone), f"lost {gone}: only whole segments are given back"
        first = max([-1, *found, *promised]) + 1
    assert killed >= 4
