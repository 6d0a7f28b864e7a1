"""How large one experiment is. The default is about ten minutes a course on two idle cores; ``SMALL`` is for tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    text_rounds: tuple[tuple[int, float], ...] = ((200, 3e-3), (50, 1e-3))
    """Steps and learning rate: the model begins to copy names in the first round and is sure of it in the second."""
    text_rows: int = 16
    """Of a step."""
    warm_sessions: int = 160
    """Recorded of the teacher, shared by all seeds."""
    warm_steps: int = 80
    warm_step_sessions: int = 8
    warm_lr: float = 1e-4
    """At 3e-4 the model forgets which call is right while it learns how often the teacher makes another."""
    batches: int = 10
    """Of rollouts, each published before the next is drawn."""
    updates: int = 4
    """Optimisation steps on a batch."""
    tasks: int = 6
    """Of a batch: a third of each request."""
    group: int = 8
    """Sessions of a task."""
    lr: float = 2e-4
    """At 1e-3 the policy forgets how to copy a name while it learns which tool to call."""
    held_out: int = 36
    """Sessions of an evaluation, each on another held-out instance."""
    every: int = 5
    """Batches between two evaluations."""
    concurrency: int = 3


SMALL = Sizes(warm_sessions=60, batches=4, tasks=6, group=6, held_out=24, every=4)
