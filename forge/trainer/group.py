"""The learners as workers of Ray Train, one process each, under torch's DDP: gloo on CPUs, nccl on GPUs.

The driver's end of ``desk``: an order goes to all learners, and the first one's answer is the answer. Errors of our own
arrive as they are; a learner's death is named.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from forge.storage.errors import ForgeError, Unavailable
from forge.storage.records import LogProbs
from forge.trainer.batch import Row
from forge.trainer.config import Hyper, StepStats
from forge.trainer.desk import Desk, Order

TELL_S: Final = 10.0
LOOK_S: Final = 1.0
"""Between two looks at whether the learners are alive."""
END_S: Final = 60.0

Tell = Callable[[int], None]


class LearnerGroup:
    """``with LearnerGroup(model, hyper, workers=2, gpu=False, scratch=folder) as learners: learners.load()``"""

    def __init__(self, model: Path, hyper: Hyper, *, workers: int, gpu: bool | None, scratch: Path) -> None:
        import ray

        self._gpu = _resources(ray.cluster_resources(), workers, gpu)
        self._workers = workers
        self._scratch = scratch
        self._desk = ray.remote(Desk).options(num_cpus=0).remote(workers)
        self._told = {"model": model, "hyper": hyper, "desk": self._desk}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, name="ray-train", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        if self._thread.is_alive():
            ray.get(self._desk.give.remote(None))
        self._thread.join(END_S)

    def load(self) -> str:
        return str(self._call("load"))

    def step(self, rows: list[Row], tell: Tell) -> StepStats:
        """One step; ``tell`` hears every few seconds how many rows the first learner has seen."""
        stats = self._call("step", rows, tell=tell)
        assert isinstance(stats, StepStats)
        return stats

    def log_probs(self, rows: Sequence[Row]) -> list[LogProbs]:
        found: list[LogProbs] = self._call("log_probs", rows)
        return found

    def save(self, path: Path) -> None:
        self._call("save", path)

    def keep(self, path: Path) -> None:
        self._call("keep", path)

    def go_on(self, path: Path) -> None:
        self._call("go_on", path)

    def _call(self, method: str, *args: Any, tell: Tell | None = None) -> Any:
        import ray
        from ray.exceptions import GetTimeoutError

        number = ray.get(self._desk.give.remote(Order(method, tuple(ray.put(each) for each in args))))
        answers = self._desk.answers.remote(number)
        waited = 0.0
        while True:
            try:
                found = ray.get(answers, timeout=LOOK_S)
                break
            except GetTimeoutError:
                waited += LOOK_S
                if not self._thread.is_alive():
                    raise self._ended() from self._failure
                if tell is not None and waited % TELL_S == 0:
                    tell(ray.get(self._desk.rows_done.remote()))
        for each in found:
            if isinstance(each, ForgeError):
                raise each
        return found[0]

    def _fit(self) -> None:
        """In a thread of its own: it ends when the learners do."""
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        logging.getLogger("ray.train").setLevel(logging.ERROR)
        trainer = TorchTrainer(
            work,
            train_loop_config=self._told,
            scaling_config=ScalingConfig(
                num_workers=self._workers, use_gpu=self._gpu, resources_per_worker=_each(gpu=self._gpu)
            ),
            torch_config=TorchConfig(backend="nccl" if self._gpu else "gloo"),
            run_config=RunConfig(
                name="learners",
                storage_path=str(self._scratch.absolute()),
                failure_config=FailureConfig(max_failures=0),
            ),
        )
        try:
            trainer.fit()
        except Exception as error:  # noqa: BLE001 - the thread is the boundary: told by the next call
            self._failure = error

    def _ended(self) -> Unavailable:
        why = str(self._failure or "it gave no reason").strip().splitlines()[-1]
        return Unavailable(
            f"the learner's process ended: {why}",
            "most often memory: lower --micro-tokens, or use a smaller model or a bigger machine",
        )


def work(told: dict[str, Any]) -> None:
    """What each of Ray Train's workers runs."""
    import ray
    import ray.train.torch

    from forge.trainer.learner import Learner

    desk, rank = told["desk"], ray.train.get_context().get_world_rank()
    tell = desk.progress.remote if rank == 0 else lambda rows: None
    device = str(ray.train.torch.get_device())
    learner = Learner(told["model"], told["hyper"], device)
    number = 0
    while (order := ray.get(desk.take.remote(number))) is not None:
        method, args = order
        try:
            values = [*ray.get(list(args)), *([tell] if method == "step" else [])]
            value = getattr(learner, method)(*values)
        except ForgeError as error:
            value = error
        ray.get(desk.answer.remote(number, rank, value))
        number += 1


def _each(*, gpu: bool) -> dict[str, float]:
    return {"CPU": 1.0, "GPU": 1.0} if gpu else {"CPU": 1.0}


def _resources(there: Mapping[str, float], workers: int, gpu: bool | None) -> bool:
    """Whether the learners take a GPU each; raises ``Unavailable`` where the cluster has not what they need, for which
    Ray would wait without an end."""
    gpus, cpus = there.get("GPU", 0.0), there.get("CPU", 0.0)
    if gpu and gpus < workers:
        have = "no GPU" if gpus == 0 else f"{gpus:g} GPUs"
        raise Unavailable(
            f"{workers} learners want a GPU each, and the cluster has {have}",
            "train on CPUs: --no-gpu; or add a node that has them, or lower --workers",
        )
    if cpus < workers:
        raise Unavailable(
            f"{workers} learners want a CPU each, and the cluster has {cpus:g}",
            "lower --workers, or add a node: ray start --address ...",
        )
    return gpus >= workers if gpu is None else gpu
