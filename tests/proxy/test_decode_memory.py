"""How much the decoder may remember."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.proxy.recording import memory


@pytest.mark.parametrize(
    ("limits", "expected"), [(["max"], None), (["1048576"], 1 << 20), ([], None), (["max", "4096"], 4096)]
)
def test_a_container_s_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: list[str], expected: int | None
) -> None:
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (tmp_path / "none",))
    machine = memory.machine_bytes()
    assert machine > 1 << 28
    paths = [tmp_path / str(number) for number in range(len(limits))]
    for path, text in zip(paths, limits, strict=True):
        path.write_text(text + "\n")
    monkeypatch.setattr(memory, "CGROUP_LIMITS", paths)
    assert memory.machine_bytes() == (expected or machine)
