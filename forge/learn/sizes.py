"""How large one experiment is. The default is fifteen minutes on two idle cores; ``SMALL`` is for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    warm_sessions: int = 200
    """Recorded of the teacher, shared by all seeds."""
    warm_steps: int = 250
    """Of each round."""
    warm_step_sessions: int = 8
    warm_rates: tuple[float, ...] = (3e-3, 1e-3)
    """Learning rate of each round; the model begins to copy names in the first and is sure of it in the second."""
    batches: int = 12
    """Of rollouts, each published before the next is drawn."""
    updates: int = 4
    """Optimisation steps on a batch."""
    tasks: int = 6
    """Of a batch: a third of each request."""
    group: int = 9
    """Sessions of a task."""
    lr: float = 2e-4
    """At 1e-3 the policy forgets how to copy a name while it learns which tool to call."""
    held_out: int = 36
    """Sessions of an evaluation, each on another held-out instance."""
    every: int = 3
    """Batches between two evaluations."""
    concurrency: int = 4


SMALL = Sizes(warm_sessions=120, batches=6, tasks=6, group=6, held_out=24, every=6)
