"""``forge demo``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from forge.storage.errors import BadInput

ROUNDS = 2


def register(app: typer.Typer) -> None:
    app.command(name="demo")(demo)


def demo(
    data: Annotated[Path | None, Option(help="A new data directory. [a folder in the system's tmp]")] = None,
    harness: Annotated[str, Option(help="The agent program: see forge harness list.")] = "pi",
    group_size: Annotated[int, Option(min=2, help="Sessions of the task, in each of the two rounds.")] = 4,
) -> None:
    """Run the main job once: a real harness, a real model, an exact dataset, one training step, new weights.

    Example: forge demo --harness codex
    """
    import tempfile

    from forge.adapters.harnesses import find
    from forge.demo import check, run_demo, summary, table
    from forge.progress import Progress
    from forge.run_config import RunConfig
    from forge.runners import find as find_runner
    from forge.signals import until_signalled
    from forge.terminal import console as make_console

    folder = data.absolute() if data else Path(tempfile.mkdtemp(prefix="forge-demo-data-"))
    if (folder / "journal").exists():
        raise BadInput(f"{folder} holds a dataset already", "name a new folder with --data")
    console = make_console()
    config = RunConfig(
        adapters=(find(harness),),
        tasks=(),
        runner=find_runner("local"),
        data=folder,
        run_id="demo",
        group_size=group_size,
    )
    with Progress(console, total=group_size * ROUNDS) as progress:
        outcome = asyncio.run(until_signalled(run_demo(config, progress)))
    check(outcome)
    console.print()
    console.print(table(outcome))
    console.print()
    console.print(summary(outcome, harness, folder), highlight=False, soft_wrap=True)
