"""A program: trains in forked children that are killed at chosen moments, goes on, and prints what came of each.

Python says of every file that is opened, made, renamed or removed (its audit hook); a child counts those below its
folder and kills itself at the one it was told. The children are forked from here, so that torch is imported once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from forge.policy import weights
from forge.storage.records import Sample
from forge.trainer import checkpoint
from forge.trainer.config import Hyper, TrainConfig
from forge.trainer.learner import Learner
from forge.trainer.loop import Loop
from forge.trainer.metrics import Metrics, read
from forge.trainer.start import start_of
from tests.trainer.conftest import sample

POINTS = 10
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")


def samples() -> list[Sample]:
    earned = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.25}
    return [sample(name, row, reward=reward, mask=[1] * (4 + row)) for name, reward in earned.items() for row in (0, 1)]


def train(model: Path, data: Path, *, resume: bool) -> None:
    torch.set_num_threads(1)
    config = TrainConfig(
        data=data, model=str(model), steps=6, step_sessions=3, hyper=Hyper(lr=1e-3, kl=0.1),
        checkpoint_every=2, out=data / "out", resume=resume,
    )  # fmt: skip
    start = start_of(config, samples(), lambda line: None)
    learner = Learner(start.base.path, config.hyper)
    learner.load()
    torch.set_num_threads(1)
    with Metrics(start.out, start.step) as metrics:
        loop = Loop(config, start, learner, metrics, lambda line: None, None)
        loop.run(lambda batch, version: samples() if batch == 0 else None)


def killing(folder: Path, point: int) -> Callable[[str, tuple[object, ...]], None]:
    """An audit hook that keeps the count in ``COUNT``; at ``point`` it kills."""
    seen = [0]

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in EVENTS and args and str(args[0]).startswith(str(folder)):
            seen[0] += 1
            if seen[0] == point:
                os.kill(os.getpid(), signal.SIGKILL)
            COUNT[0] = seen[0]

    return hook


COUNT = [0]


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except Exception:  # noqa: BLE001 - the child's boundary
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(data: Path) -> dict[str, object]:
    published = weights.current(data)
    assert published is not None
    lines = read(data / "out" / "metrics.jsonl")
    return {"losses": [line["loss"].hex() for line in lines], "digest": published.digest}


def check(data: Path) -> None:
    """Whatever a policy server could be told to load is whole."""
    published = weights.current(data)
    assert published is None or published.digest == weights.weight_digest(published.path)
    for path in (data / "policy").glob("*"):
        if path.name.isdecimal():
            Learner(path, Hyper()).load()


def main(model: Path, root: Path) -> None:
    def uninterrupted() -> None:
        sys.addaudithook(killing(root / "plain", 0))
        train(model, root / "plain", resume=False)
        (root / "events").write_text(str(COUNT[0]))

    assert forked(uninterrupted) == 0
    events = int((root / "events").read_text())
    print(json.dumps(outcome(root / "plain")))
    for number in range(POINTS):
        point, data = 1 + number * (events - 1) // (POINTS - 1), root / f"killed-{number}"

        def doomed(data: Path = data, point: int = point) -> None:
            sys.addaudithook(killing(data, point))
            train(model, data, resume=False)

        ended = forked(doomed)
        torn = forked(lambda data=data: check(data))  # type: ignore[misc]
        resume = bool(checkpoint.folders(data / "out"))
        went_on = forked(lambda data=data, resume=resume: train(model, data, resume=resume))  # type: ignore[misc]
        told = {"point": point, "ended": ended, "whole": torn, "resumed": resume, "went_on": went_on}
        print(json.dumps(told | (outcome(data) if went_on == 0 else {})), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
