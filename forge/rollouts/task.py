"""One session as a Ray task: its workspace, its harness, its grader, on the node whose proxy opened it.

Runs in the worker's main thread: a confined harness dies with the thread that started it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forge.adapters.harnesses.base import HarnessAdapter
from forge.client import Closed, ControlClient, Ticket
from forge.graders import Graders
from forge.launching import Launching
from forge.rollout import Rollouts
from forge.run_config import RunConfig
from forge.run_report import SessionReport
from forge.scratch import scratch
from forge.stack import Control
from forge.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A session that is open and shall run."""

    ticket: Ticket
    control: Control
    """Of the node's proxy."""
    task: Task
    adapter: HarnessAdapter
    index: int
    context_tokens: int | None


def rollout(config: RunConfig, code: Mapping[str, bytes], given: Assignment) -> tuple[SessionReport, Closed]:
    """``code``: the graders' own, as ``packed`` gives it. Raises when the node's proxy is gone."""
    return asyncio.run(_rollout(config, code, given))


async def _rollout(config: RunConfig, code: Mapping[str, bytes], given: Assignment) -> tuple[SessionReport, Closed]:
    with scratch("rollout") as folder:
        unpack(code, folder / "code")
        async with ControlClient(given.control.url, given.control.token) as client:
            launching = Launching(config, given.context_tokens, None)
            rollouts = Rollouts(config, client, Graders(config.runner, folder / "code"), launching, scratch=folder)
            return await rollouts.within(given.ticket, given.task, given.adapter, given.index)


def packed(folder: Path) -> Mapping[str, bytes]:
    """A folder's files by their paths in it: a node need not see the driver's."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
