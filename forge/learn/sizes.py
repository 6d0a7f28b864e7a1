"""How large one experiment is: by default some hundred sessions of the harness a course. ``SMALL`` is for tests."""

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
    warm_steps: int = 140
    warm_step_sessions: int = 8
    warm_lr: float = 2e-4
    """Gently: what the text said of right calls is to be covered up, not forgotten."""
    batches: int = 12
    """Of rollouts, each published before the next is drawn."""
    updates: int = 4
    """Optimisation steps on a batch."""
    tasks: int = 6
    """Of a batch: a third of each request."""
    group: int = 8
    """Sessions of a task."""
    lr: float = 3e-4
    """At 1e-3 the policy forgets how to copy a name while it learns which tool to call."""
    held_out: int = 48
    """Sessions of an evaluation, each on another held-out instance."""
    every: int = 4
    """Batches between two evaluations."""
    concurrency: int = 3


SMALL = Sizes(
    text_rounds=((150, 3e-3), (40, 1e-3)),
    text_rows=12,
    warm_sessions=24,
    warm_steps=32,
    batches=2,
    updates=10,
    tasks=3,
    lr=1e-4,
    held_out=3,
    every=2,
)
"""Half a batch says less, so that more and smaller steps are made on it. Sampled without the harness, one course in
eight took its calls apart at 3e-4 and four steps, and none of 22 at this rate."""
