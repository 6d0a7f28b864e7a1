"""One scripted task in one real harness: through a real proxy, confined, on the scripted policy.

It is a run like any other; only the policy server, the task and the name server are of its own making.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from forge.adapters.harnesses.base import HarnessAdapter
from forge.harness_check.facts import Facts, gather
from forge.harness_check.names import listening
from forge.harness_check.policy import ScriptedPolicy
from forge.harness_check.script import TASK
from forge.run import run
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.runners import find as find_runner
from forge.scratch import keep, scratch
from forge.storage.dataset import Dataset
from forge.tasks import Task

RUN: Final = "check"
DATA: Final = "data"


class Checked(NamedTuple):
    facts: Facts
    kept: Path | None
    """Output, transcript and logs of a check that failed; whoever looks at them deletes them."""


class _Watch:
    """Forgets what the policy server served before the session began: the proxy's own probe."""

    def __init__(self, policy: ScriptedPolicy, say: Callable[[str], None]) -> None:
        self._policy = policy
        self.say = say

    def begun(self, task: Task, rollout_index: int) -> None:
        self._policy.served.clear()

    def done(self, report: SessionReport) -> None:
        """The facts say it."""


async def check(adapter: HarnessAdapter, say: Callable[[str], None], *, seconds: float) -> Checked:
    """Raises ``ForgeError`` where the harness cannot be installed or nothing can be confined here."""
    with scratch(f"check-{adapter.name}") as folder:
        facts = await _facts(adapter, say, folder, seconds)
        if facts.passed:
            return Checked(facts, None)
        keep(folder)
        return Checked(facts, folder)


async def _facts(adapter: HarnessAdapter, say: Callable[[str], None], folder: Path, seconds: float) -> Facts:
    policy = ScriptedPolicy()
    async with policy.listening(), listening(folder) as names:
        config = RunConfig(
            adapters=(adapter,),
            tasks=(TASK,),
            runner=find_runner("local"),
            data=folder / DATA,
            run_id=RUN,
            seconds=seconds,
            policy=policy.url,
            resolv=names.resolv if names else None,
        )
        report = await run(config, _Watch(policy, say))
    calls = sorted(Dataset(config.data).calls(RUN), key=lambda call: (call.seq, call.choice))
    return gather(report.sessions[0], adapter.version, calls, policy.served, names.asked if names else None)
