"""Runners by name: where a launch, or a grader, runs."""

from __future__ import annotations

from forge.runners.base import Runner
from forge.runners.local import LocalRunner
from forge.runners.unconfined import UnconfinedRunner
from forge.storage.errors import BadInput

RUNNERS: dict[str, type[Runner]] = {"local": LocalRunner, "unconfined": UnconfinedRunner}


def find(name: str) -> Runner:
    """The runner called ``name``; raises ``BadInput`` with the names there are."""
    if name not in RUNNERS:
        raise BadInput(f"unknown runner {name!r}", f"choose one of: {', '.join(sorted(RUNNERS))}")
    return RUNNERS[name]()
