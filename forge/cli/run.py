"""``forge run``: sessions of a real harness, recorded and graded, in one command."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from forge.cli.intercept import Map
from forge.option_values import json_object
from forge.proxy.config import Record
from forge.proxy.intercept.hosts import Others, Rules, rules
from forge.proxy.sessions.spec import HistoryMode
from forge.storage.errors import BadInput, Exit
from forge.storage.records import Purpose

if TYPE_CHECKING:
    from forge.adapters.harnesses.base import HarnessAdapter
    from forge.run_config import RunConfig
    from forge.tasks import Task

EXAMPLE = "Example: forge run --harness pi --task 'Create hello.txt containing hi' --group-size 4"


class RunnerName(StrEnum):
    LOCAL = "local"
    UNCONFINED = "unconfined"


Harness = Annotated[str, Option(help="The agent program, or several: A,B,C. See `forge harness list`.")]
Command = Annotated[
    str | None,
    Option(help="For --harness command: any program, with {base_url}, {api_key}, {model}, {prompt}, {workspace}."),
]
OneTask = Annotated[str | None, Option(help="One task: what the agent is asked.")]
Tasks = Annotated[Path | None, Option(help="Tasks, one JSON object a line: id, prompt, files, grader.")]
GroupSize = Annotated[int, Option(help="Sessions of each task; they are compared with each other.")]
Concurrency = Annotated[int, Option(help="Sessions at the same time.")]
Timeout = Annotated[float, Option(help="Seconds after which a harness and all it started is ended.")]
Policy = Annotated[str | None, Option(help="URL of a policy server. [the embedded one, started and stopped]")]
Control = Annotated[str | None, Option(help="Control plane URL of a running proxy. [a proxy is started and stopped]")]
TokenFile = Annotated[Path | None, Option(envvar="FORGE_CONTROL_TOKEN_FILE", help="That proxy's control token.")]
Sampling = Annotated[str, Option(help='JSON laid over the training sampling: {"max_tokens": 512}.')]
History = Annotated[
    HistoryMode, Option(help="keep-reasoning: give back the thinking that a harness drops; a restart forgets it.")
]
Data = Annotated[Path, Option(help="Where the dataset is.")]
RunName = Annotated[str | None, Option("--run", help="Name of the run. [date and time]")]
Model = Annotated[str | None, Option(help="Model name to ask the policy server for.")]
Confinement = Annotated[RunnerName, Option(help="local: confined by bubblewrap. unconfined: as you, with your files.")]
Strictness = Annotated[Record, Option(help="strict: every call must be able to train.")]
For = Annotated[Purpose, Option(help="What the sessions are for.")]
Intercept = Annotated[
    bool, Option("--intercept", help="Let harnesses call their provider, and lead that to the policy.")
]
Unmapped = Annotated[
    Others | None, Option(help="With --intercept, all other hosts. block: 403. pass: untouched. [block]")
]


def register(app: typer.Typer) -> None:
    app.command(name="run", epilog=EXAMPLE)(run)


def run(
    harness: Harness,
    command: Command = None,
    task: OneTask = None,
    tasks: Tasks = None,
    group_size: GroupSize = 1,
    concurrency: Concurrency = 4,
    timeout: Timeout = 600,
    policy: Policy = None,
    control: Control = None,
    control_token_file: TokenFile = None,
    sampling: Sampling = "{}",
    history: History = HistoryMode.AS_SENT,
    data: Data = Path("data"),
    run_name: RunName = None,
    model: Model = None,
    runner: Confinement = RunnerName.LOCAL,
    record: Strictness = Record.STRICT,
    purpose: For = Purpose.TRAIN,
    intercept: Intercept = False,
    map_hosts: Map = None,
    others: Unmapped = None,
) -> None:
    """Run every task in each harness, record every call, grade what it left.

    The same line with another word after --harness runs another harness; several words run the same tasks in each.
    Sessions are compared (a group) with those of the same task in the same harness, because another harness gives
    the model another prompt and other tools; the report sets the harnesses side by side.

    Exit code 0: every session was served and recorded, and its calls can train; 1: one made no call, or none that
    was served; 3: some calls cannot train (each is named); 4: no policy or no harness; 130: interrupted.
    """
    from forge.run_config import TRAINING_SAMPLING, RunConfig, new_run_id
    from forge.runners import find as find_runner

    config = RunConfig(
        adapters=adapters_named(harness, command),
        tasks=_tasks(task, tasks),
        runner=find_runner(runner.value),
        data=data.absolute(),
        run_id=run_name or new_run_id(),
        group_size=group_size,
        concurrency=concurrency,
        seconds=timeout,
        sampling={**TRAINING_SAMPLING, **json_object("--sampling", sampling)},
        history=history,
        purpose=purpose,
        record=record,
        policy=policy,
        control=control,
        control_token_file=control_token_file,
        model=model,
        modules=tasks.absolute().parent if tasks else None,
        intercept=_intercept(intercept, map_hosts or (), others),
    )
    raise typer.Exit(_carry_out(config))


def adapters_named(names: str, command: str | None) -> tuple[HarnessAdapter, ...]:
    from forge.adapters.harnesses import find
    from forge.adapters.harnesses.command import Command

    chosen = [name.strip() for name in names.split(",")]
    if command is not None and Command.name not in chosen:
        raise BadInput(f"--command is for --harness {Command.name}, not for {names}", f"write --harness {Command.name}")
    return tuple(find(name, command) for name in chosen)


def _intercept(asked: bool, map_hosts: Sequence[str], others: Others | None) -> Rules | None:
    if asked:
        return rules(others or Others.BLOCK, map_hosts)
    if map_hosts or others:
        raise BadInput("--map and --others say where intercepted requests go", "add --intercept, or leave them away")
    return None


def _tasks(text: str | None, file: Path | None) -> tuple[Task, ...]:
    from forge.tasks import one, read

    if (text is None) == (file is None):
        raise BadInput(
            "give either --task or --tasks", "one task: --task 'Create hello.txt'; a file: --tasks FILE.jsonl"
        )
    return (one(text),) if text is not None else read(file or Path())


def _carry_out(config: RunConfig) -> Exit:
    from forge.progress import Progress
    from forge.run import run
    from forge.run_table import print_report
    from forge.signals import until_signalled
    from forge.terminal import console as make_console

    console = make_console()
    with Progress(console, total=len(config.tasks) * config.group_size * len(config.adapters)) as progress:
        report = asyncio.run(until_signalled(run(config, progress)))
    print_report(report, console)
    return report.exit_code
