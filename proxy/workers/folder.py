"""Where the sockets of workers lie: in a folder that the parent makes and removes, and that only its user may enter."""

from __future__ import annotations

from pathlib import Path


def control_path(folder: Path, number: int) -> Path:
    """Of a worker's own control plane, which the parent asks."""
    return folder / f"control-{number}"


def handover_path(folder: Path, number: int) -> Path:
    """Where a worker is sent connections."""
    return folder / f"handover-{number}"
