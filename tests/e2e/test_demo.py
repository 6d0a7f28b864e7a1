"""``forge demo`` from its command line, small: of two sessions the rewards are too often the same (seen)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forge.storage.dataset import Dataset
from tests.proxy.process import run_to_end

DEMO_S = 580.0
GROUP = 3


@pytest.mark.model
@pytest.mark.ray
@pytest.mark.harness
@pytest.mark.timeout(600)
async def test_the_whole_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "forge", "demo", "--data", str(data), "--group-size", str(GROUP)]
    code, said = await run_to_end(command, DEMO_S)
    assert code == 0, said
    assert "published version 1" in said
    dataset = Dataset(data)
    assert {c.policy_version_start for c in dataset.calls("before")} == {0}
    assert {c.policy_version_start for c in dataset.calls("after")} == {1}
    assert (data / "policy" / "CURRENT").exists()
    code, said = await run_to_end([sys.executable, "-m", "forge", "sessions", "--data", str(data)])
    assert code == 0
    assert len([line for line in said.splitlines() if " completed " in line]) == 2 * GROUP
