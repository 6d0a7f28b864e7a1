"""``python -m forge.learn``: three seeds and a control, their curves and their table."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from typer import Option

from forge.learn.experiment import Course, follow
from forge.learn.page import write
from forge.learn.sizes import SMALL, Sizes
from forge.learn.small import untied
from forge.learn.warmup import record, teach
from forge.policy import weights
from forge.run_config import RunConfig
from forge.runners import find as find_runner
from forge.scratch import scratch
from forge.signals import until_signalled
from forge.stack import serving
from forge.trainer.cluster import cluster
from forge.trainer.publish import announce

COURSE = "course.json"
LINEAGE = "main"

Say = Callable[[str], None]


def main(
    data: Annotated[Path, Option(help="Folder of everything that it makes.")] = Path("learn"),
    harness: Annotated[str, Option(help="The agent program, one with pi's tools.")] = "pi",
    seed: Annotated[list[int] | None, Option(help="May be given several times. Default: 0, 1 and 2.")] = None,
    control: Annotated[bool, Option(help="Also the first seed with shuffled rewards.")] = True,
    small: Annotated[bool, Option("--small", help="A size for tests.")] = False,
    policy: Annotated[
        str | None, Option(help="URL of a policy server that serves a small policy. Default: the embedded one.")
    ] = None,
) -> None:
    """A small policy learns a tool task in a real harness, and a control with shuffled rewards does not.

    A course that is in the folder already is not run again. A policy server that is given loads the weights of each
    course by publication, so it has to see the folder.
    """
    seeds = seed or [0, 1, 2]
    wanted = [(each, False) for each in seeds] + ([(seeds[0], True)] if control else [])
    work = run(data.absolute(), harness, wanted, SMALL if small else Sizes(), typer.echo, policy)
    courses = asyncio.run(until_signalled(work))
    typer.echo(write(data, courses))


async def run(
    data: Path,
    harness: str,
    wanted: Sequence[tuple[int, bool]],
    sizes: Sizes,
    say: Say,
    policy: str | None = None,
) -> list[Course]:
    """``policy``: URL of the server that courses are served by; None: each starts the embedded one. All learn on one
    Ray cluster."""
    samples = await record(data / "warmup", harness, sizes, say)
    with cluster(None):
        taught = await asyncio.to_thread(teach, data / "taught", samples, sizes, say)
        return [await _course(data, harness, seed, shuffled, taught, sizes, say, policy) for seed, shuffled in wanted]


async def _course(
    data: Path, harness: str, seed: int, shuffled: bool, taught: Path, sizes: Sizes, say: Say, policy: str | None
) -> Course:
    folder = data / f"seed-{seed}{'-shuffled' if shuffled else ''}"
    done = folder / COURSE
    if done.exists():
        return msgspec.json.decode(done.read_bytes(), type=Course)
    if weights.current(folder) is None:
        begin = _copy if policy is None else untied
        weights.publish(folder, 1, lambda building: begin(taught, building), LINEAGE)
    config = RunConfig(adapters=(), tasks=(), runner=find_runner("local"), data=folder, run_id="serving", policy=policy)
    with scratch("learn") as temporary:
        async with serving(config, temporary, say) as control:
            if policy is not None and (first := weights.current(folder)) is not None:
                await announce(control.url, control.token, first)  # whatever it served before
            found = await follow(folder, control.url, harness, seed, sizes, say, shuffled=shuffled)
    done.write_bytes(msgspec.json.encode(found))
    return found


def _copy(taught: Path, building: Path) -> None:
    shutil.copytree(taught, building, dirs_exist_ok=True)


if __name__ == "__main__":
    typer.run(main)
