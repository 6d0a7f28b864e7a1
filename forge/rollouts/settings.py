"""What a training run is told of its rollouts; decided before anything is started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from forge.rollouts.balance import Balance
from forge.run_config import RunConfig
from forge.storage.errors import BadInput

SESSION_CPUS: Final = 0.25
"""Of a node, for one session: its harness waits for the model most of the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    run: RunConfig
    """Tasks, harnesses, runner, data, policy server, sampling; ``concurrency`` is over all nodes."""
    balance: Balance = field(default_factory=Balance)
    groups: int = 4
    """Of a batch."""
    batches: int = 1
    max_staleness: int = 0
    """0: synchronous. Batches by which sessions may run ahead of the trainer."""
    learners: int = 1
    """Of the trainer: each takes a CPU of the cluster, which no session has then."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("--groups", self.groups), ("--batches", self.batches)):
            if least < 1:
                raise BadInput(f"{name} is {least}", "give at least 1")
        if self.max_staleness < 0:
            raise BadInput(f"--max-staleness is {self.max_staleness}", "with rollouts it is a number of batches from 0")
        if ungraded := next((task.id for task in self.run.tasks if task.grader is None), None):
            raise BadInput(
                f"task {ungraded!r} has no grader, so none of its sessions would have a reward",
                'give it one: "grader": {"command": "..."}',
            )
        if self.run.intercept is not None or self.run.control is not None:
            raise BadInput(
                "rollouts have proxies of their own, one on every node", "leave --control and --intercept away"
            )
