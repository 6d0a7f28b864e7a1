"""What one ``forge run`` shall do; decided before anything is started."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forge.adapters.harnesses.base import HarnessAdapter
from forge.proxy.config import Record
from forge.proxy.intercept.hosts import Rules
from forge.proxy.sessions.spec import HistoryMode
from forge.runners.base import Runner
from forge.storage.errors import BadInput
from forge.storage.names import check_name
from forge.storage.records import Purpose
from forge.tasks import Task

TRAINING_SAMPLING: Final[Mapping[str, Any]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""The policy's own distribution, unshaped: what a recorded log probability must be of."""


def new_run_id() -> str:
    """Sorts by time; unique without asking anyone."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


def check_place(policy: str | None, control: str | None, control_token_file: Path | None) -> None:
    """A policy server, or a proxy and its token, or nothing: then both are started."""
    if control is not None and policy is not None:
        raise BadInput(
            "--control and --policy exclude each other: a running proxy has its policy servers",
            "add the policy server to that proxy, or leave --control away",
        )
    if control is not None and control_token_file is None:
        raise BadInput(
            "--control needs the proxy's token", "pass --control-token-file DATA/control.token of that proxy"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    adapters: tuple[HarnessAdapter, ...]
    """Every task runs in each of them."""
    tasks: tuple[Task, ...]
    runner: Runner
    data: Path
    run_id: str = field(default_factory=new_run_id)
    group_size: int = 1
    concurrency: int = 4
    seconds: float = 600.0
    """Time limit of one harness."""
    sampling: Mapping[str, Any] = field(default_factory=lambda: TRAINING_SAMPLING)
    history: HistoryMode = HistoryMode.AS_SENT
    purpose: Purpose = Purpose.TRAIN
    record: Record = Record.STRICT
    policy: str | None = None
    """URL of a running policy server; None starts the embedded one."""
    control: str | None = None
    """URL of a running proxy's control plane; None starts a proxy."""
    control_token_file: Path | None = None
    model: str | None = None
    """Name to ask the policy server for; None: the one it serves."""
    intercept: Rules | None = None
    """The harnesses call their providers, and are led to the proxy; None: they are told the proxy's address."""
    modules: Path | None = None
    """A folder in which Python graders are looked for too."""
    resolv: Path | None = None
    """The harnesses' own ``/etc/resolv.conf``; None: this machine's."""

    def __post_init__(self) -> None:
        check_name("the run", self.run_id)
        names = [adapter.name for adapter in self.adapters]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadInput(f"harness {min(twice)} is named twice", "name each harness once; --group-size repeats it")
        for name, least in (("group size", self.group_size), ("concurrency", self.concurrency)):
            if least < 1:
                raise BadInput(f"the {name} is {least}", "give at least 1")
        if not self.seconds > 0:
            raise BadInput(f"the time limit is {self.seconds:g} s", "give a number of seconds above 0")
        check_place(self.policy, self.control, self.control_token_file)
        for name in (*TRAINING_SAMPLING, "max_tokens"):
            value = self.sampling.get(name)
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool)):
                raise BadInput(f"--sampling: {name} is {value!r}", f'give a number: {{"{name}": 1}}')

    @property
    def kept(self) -> Path:
        """Where harness output, transcripts and logs of this run are kept."""
        return self.data / "harness" / self.run_id
