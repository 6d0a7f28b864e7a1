"""Forge in TRL's ``AsyncGRPOTrainer``: a rollout worker whose samples hold the recorded ids.

``AsyncGRPOTrainer(rollout_worker=ForgeWorker(settings, group_size=8), ...)``. TRL's own worker makes messages into ids
again and joins what fits; ours gives every row as it was sampled. It runs groups in a thread of its own, compares
sessions within a group, and tells the proxy the version that TRL has just loaded.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, replace
from dataclasses import fields as fields_of
from functools import partial
from importlib import import_module
from itertools import count, cycle
from pathlib import Path
from typing import Any, Final

from forge.adapters.trainers.trl import rollout_sample
from forge.client import ControlClient
from forge.plugins.episodes import Asked, Episode, Episodes, blocking
from forge.plugins.settings import Settings
from forge.plugins.trl import NEEDS
from forge.storage.errors import BadInput
from forge.tasks import Task
from forge.trainer.advantage import group_advantages
from forge.trainer.config import Baseline

BUFFER: Final = 1024
"""Samples that wait for the trainer; then the worker waits."""
LOOK_S: Final = 0.5
"""How long one try to hand on a sample to a full buffer takes."""


class ForgeWorker:
    """TRL's ``RolloutWorkerProtocol``. ``sample_type``: the class of a sample; TRL's own where none is named."""

    def __init__(
        self,
        settings: Settings | Mapping[str, Any],
        *,
        group_size: int,
        sampling: Mapping[str, Any] | None = None,
        sample_type: Callable[..., Any] | None = None,
    ) -> None:
        self._settings = settings if isinstance(settings, Settings) else Settings.of(settings)
        if not self._settings.all_tasks:
            raise BadInput("the worker has no tasks", "name a file of them in the setting `tasks`")
        if group_size < 2:
            raise BadInput(f"the group size is {group_size}", "sessions are compared: give at least 2")
        self._size = group_size
        self._sampling = dict(sampling or {})
        self._sample_type = sample_type
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(BUFFER)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self._version = 0
        self._begun = threading.Event()
        self._cancel: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._run, name="forge-worker", daemon=True)
        self._failure: BaseException | None = None
        self._alive = time.monotonic()

    def start(self) -> None:
        self.update_model_version(self._version)
        self._alive = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Sessions that run are ended and closed as interrupted."""
        if self._thread.is_alive():
            self._begun.wait()
            self._cancel()
            self._thread.join()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it has ended by itself, which it does only when it fails."""
        self._thread.join(timeout_s)

    def update_model_version(self, model_version: int) -> None:
        """TRL has loaded these weights into the policy servers by its own means."""
        self._version = model_version
        blocking(self._announce(model_version))

    def check_health(self, stale_after_s: float) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the rollout worker ended: {self._failure}") from self._failure
        if (idle := time.monotonic() - self._alive) > stale_after_s:
            raise RuntimeError(f"no group ended for {idle:.0f} s")

    async def _announce(self, version: int) -> None:
        settings = self._settings
        async with ControlClient.from_token_file(settings.control, Path(settings.control_token_file)) as client:
            await client.publish(version=version, lineage=settings.run_id, by_trainer=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._produce())
        except asyncio.CancelledError:
            pass  # told to stop
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: check_health raises it in the trainer
            while isinstance(error, BaseExceptionGroup):  # of a task group: one tells enough
                error = error.exceptions[0]
            self._failure = error
        finally:
            self._begun.set()

    async def _produce(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        self._begun.set()
        wanted = zip(count(), cycle(self._settings.all_tasks.values()), strict=False)
        lanes = max(1, self._settings.concurrency // self._size)
        async with Episodes(self._settings, NEEDS) as episodes, asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(self._lane(episodes, wanted))

    async def _lane(self, episodes: Episodes, wanted: Iterator[tuple[int, Task]]) -> None:
        """Group after group."""
        for number, task in wanted:
            version = self._version
            name = f"{self._settings.run_id}/{number}/{task.id}"
            asked = [Asked(task, name, index) for index in range(self._size)]
            made = await episodes.many(asked, self._sampling)
            self._alive = time.monotonic()
            for sample in self._samples(made, group=number, version=version):
                await self._give(sample)

    def _samples(self, episodes: Sequence[Episode], *, group: int, version: int) -> list[Any]:
        scored = [e for e in episodes if e.rows and e.rows[0].sample.reward is not None]
        advantages = group_advantages([e.rows[0].reward for e in scored], Baseline.STD)
        self.metrics_queue.put({"forge/sessions_unscored": float(len(episodes) - len(scored))})
        if advantages is None:
            self.metrics_queue.put({"forge/groups_dropped": 1.0})
            return []
        make = self._sample_type or import_module("trl.experimental.async_grpo.async_rollout_worker").RolloutSample
        return [
            built(make, rollout_sample(replace(row, advantage=advantage), group=group, version=version))
            for episode, advantage in zip(scored, advantages, strict=True)
            for row in episode.rows
        ]

    async def _give(self, sample: Any) -> None:
        """Waits while the buffer is full; in steps, so that a cancelled worker's thread ends."""
        while True:
            try:
                await asyncio.to_thread(self.rollout_buffer.put, sample, timeout=LOOK_S)
                return
            except queue.Full:
                self._alive = time.monotonic()  # it is the trainer that takes its time


def built(kind: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """A sample of TRL's class as installed: releases differ in its fields, and in lists or arrays for ids."""
    theirs: Any = kind
    given: dict[str, Any] = {"enqueued_at": time.time(), **values}
    known = {field.name: field for field in fields_of(theirs)}
    required = {f.name for f in known.values() if f.default is MISSING and f.default_factory is MISSING}
    if missing := sorted(required - set(given)):
        raise BadInput(f"this TRL wants the field {missing[0]!r} in a sample", "use trl 1.16, or a newer forge")
    return kind(
        **{
            name: value.tolist() if "list" in str(known[name].type) and hasattr(value, "tolist") else value
            for name, value in given.items()
            if name in known
        }
    )
