"""The learner as a Ray actor. Its own errors arrive as they are; its death is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from forge.storage.errors import ForgeError, Unavailable
from forge.trainer.batch import Row
from forge.trainer.config import Hyper, StepStats

TELL_S: Final = 10.0


class RemoteLearner:
    def __init__(self, model: Path, hyper: Hyper) -> None:
        import ray

        from forge.trainer.learner import Learner

        gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0))
        # The second thread answers how far a step has come.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_concurrency": 2}
        self.actor = ray.remote(Learner).options(**options).remote(str(model), hyper)

    def load(self) -> str:
        return str(self._call("load"))

    def step(self, rows: list[Row], tell: Callable[[int], None]) -> StepStats:
        """One step; ``tell`` hears every few seconds how many rows it has seen."""
        import ray

        with _ray_errors():
            running = self.actor.step.remote(rows)
            while not ray.wait([running], timeout=TELL_S)[0]:
                tell(ray.get(self.actor.rows_done.remote()))
            stats = ray.get(running)
        assert isinstance(stats, StepStats)
        return stats

    def save(self, path: Path) -> None:
        self._call("save", str(path))

    def _call(self, method: str, *args: Any) -> Any:
        import ray

        with _ray_errors():
            return ray.get(getattr(self.actor, method).remote(*args))


@contextmanager
def _ray_errors() -> Iterator[None]:
    from ray.exceptions import RayActorError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, ForgeError):
            raise error.cause from None
        raise
    except RayActorError as error:
        raise Unavailable(
            f"the learner's process ended: {error}",
            "most often memory: lower --micro-tokens, or use a smaller model or a bigger machine",
        ) from error
