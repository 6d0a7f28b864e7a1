"""What a plug-in must be told: where the proxy is, which harness to run, which tasks there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from forge import tasks
from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import HarnessAdapter
from forge.run_config import TRAINING_SAMPLING, RunConfig
from forge.runners import find as find_runner
from forge.storage.errors import BadInput
from forge.storage.records import Purpose
from forge.tasks import Task

SAMPLING: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens")
"""What a trainer says of sampling that reaches the policy server; its other keys are its own."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    control: str
    """URL of the control plane of a running ``forge proxy``."""
    control_token_file: str
    harness: str
    command: str | None = None
    """For the harness ``command``."""
    tasks: str | None = None
    """JSONL file; a dataset row names its task by ``task_id``, or by its prompt where a trainer passes nothing else on.
    Without a file the row's prompt is the task, ungraded."""
    data: str = "data"
    """Where harness output and transcripts are kept."""
    run_id: str = "trainer"
    runner: str = "local"
    seconds: float = 600.0
    concurrency: int = 8
    purpose: str = Purpose.TRAIN.value

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Raises ``BadInput`` with the names there are."""
        known = {field.name for field in fields(cls)}
        if unknown := set(values) - known:
            raise BadInput(f"no setting is called {min(unknown)!r}", f"there are: {', '.join(sorted(known))}")
        if missing := {"control", "control_token_file", "harness"} - set(values):
            raise BadInput(f"the setting {min(missing)!r} is missing", "see docs/trainers.md")
        return cls(**values)

    @cached_property
    def all_tasks(self) -> dict[str, Task]:
        return {task.id: task for task in tasks.read(Path(self.tasks))} if self.tasks is not None else {}

    @property
    def adapter(self) -> HarnessAdapter:
        return find(self.harness, self.command)

    @cached_property
    def _by_prompt(self) -> dict[str, Task]:
        return {task.prompt.strip(): task for task in self.all_tasks.values()}

    def task(self, task_id: str | None, prompt: str) -> Task:
        """The task that a dataset row means."""
        if self.tasks is None:
            return Task(id=task_id or "task", prompt=prompt, row={"id": task_id or "task", "prompt": prompt})
        found = self.all_tasks.get(task_id) if task_id is not None else self._by_prompt.get(prompt.strip())
        if found is None:
            what = f"no task {task_id!r}" if task_id is not None else f"no task with the prompt {prompt[:80]!r}"
            raise BadInput(f"{self.tasks} has {what}", "every dataset row means a task of that file")
        return found

    def run_config(self, sampling: Mapping[str, Any]) -> RunConfig:
        """As for ``forge run`` against that proxy; ``sampling``: the trainer's own, over ours."""
        asked = {name: sampling[name] for name in SAMPLING if sampling.get(name) is not None}
        return RunConfig(
            adapters=(self.adapter,),
            tasks=tuple(self.all_tasks.values()),
            runner=find_runner(self.runner),
            data=Path(self.data).absolute(),
            run_id=self.run_id,
            concurrency=self.concurrency,
            seconds=self.seconds,
            sampling={**TRAINING_SAMPLING, **asked},
            purpose=Purpose(self.purpose),
            control=self.control,
            control_token_file=Path(self.control_token_file),
            modules=Path(self.tasks).absolute().parent if self.tasks is not None else None,
        )


def prompt_text(prompt: Any) -> str:
    """What the agent is asked, out of a trainer's prompt: text, or messages, of which the last one's text."""
    if isinstance(prompt, str):
        return prompt
    content = prompt[-1]["content"] if len(prompt) else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)
