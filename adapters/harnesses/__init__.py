"""Harness adapters by name: the one word that ``forge run --harness`` takes."""

from __future__ import annotations

from forge.adapters.harnesses.base import HarnessAdapter
from forge.adapters.harnesses.codex import Codex
from forge.adapters.harnesses.pi import Pi
from forge.storage.errors import BadInput

HARNESSES: dict[str, HarnessAdapter] = {adapter.name: adapter for adapter in (Codex(), Pi())}


def find(name: str) -> HarnessAdapter:
    """The adapter called ``name``; raises ``BadInput`` with the names there are."""
    if name not in HARNESSES:
        raise BadInput(f"unknown harness {name!r}", f"choose one of: {', '.join(sorted(HARNESSES))}")
    return HARNESSES[name]
