"""``forge train``: options to a ``TrainConfig``, lines to the terminal. Torch and Ray load when it runs.

With ``--tasks`` it makes its own sessions (``forge.rollouts``); without, it learns from recorded ones.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from forge.cli.run import RunnerName, adapters_named
from forge.option_values import json_object
from forge.rollouts.balance import Balance
from forge.storage.errors import BadInput
from forge.trainer.config import Baseline, Correction, Hyper, Mean, Objective, Overlong, TrainConfig

if TYPE_CHECKING:
    from forge.run_config import RunConfig
    from forge.trainer.loop import TrainReport

EXAMPLE = "Example: forge train --harness pi --tasks tasks.jsonl --model DIR --batches 20 --data DATA"

Data = Annotated[Path, Option(help="Data directory that the sessions were recorded in.")]
Runs = Annotated[list[str] | None, Option(help="Learn from this run only; may be given several times. Default: all.")]
Model = Annotated[str | None, Option(help="Model directory or name to start from. Default: the published weights.")]
Aim = Annotated[Objective, Option(help="grpo: from rewards. sft: the likelihood of every trained token.")]
Steps = Annotated[int, Option(min=1, help="Optimisation steps.")]
StepSessions = Annotated[int | None, Option(min=1, help="Sessions of one step. Default: all.")]
Rate = Annotated[float, Option(min=0.0, help="AdamW learning rate; the first step moves each weight by it.")]
ClipLow = Annotated[float, Option(min=0, max=1, help="Below 1 - this, a ratio stops a token's gradient.")]
ClipHigh = Annotated[float, Option(min=0, help="Above 1 + this, a ratio stops a token's gradient.")]
Against = Annotated[
    Baseline, Option(help="A reward less its group's mean, by its spread (std) or not; or less the others' mean.")
]
MeanOver = Annotated[Mean, Option(help="Over sessions, then each one's tokens; or over all tokens.")]
Correct = Annotated[
    Correction, Option(help="Of the gap between recorded log probs and the trainer's: see docs/training.md.")
]
Kl = Annotated[float, Option(min=0, help="Weight of the penalty for leaving the first model; 0: none.")]
TooLong = Annotated[Overlong, Option(help="Rows that a length limit ended: learned from, or only compared with.")]
LoraRank = Annotated[int | None, Option(min=1, help="Train adapters of this rank. Default: all weights.")]
MicroTokens = Annotated[
    int | None,
    Option(min=1, help="Tokens of a forward pass; bounds memory only. Default: by device."),
]
MaxStaleness = Annotated[
    int, Option(min=-1, help="Leave out samples of weights more versions older than this; -1 takes all.")
]
Unverified = Annotated[
    bool, Option("--unverified", help="Learn also from runs that fail verification (see `forge verify`).")
]
ControlUrl = Annotated[str | None, Option(help="Control URL of a proxy that is to load the new weights.")]
TokenFile = Annotated[
    Path | None,
    Option(envvar="FORGE_CONTROL_TOKEN_FILE", help="Its token file. Default: DATA/control.token."),
]
Seed = Annotated[int, Option(help="Seed of every random generator.")]
RayAddress = Annotated[str | None, Option(help="Address of a Ray cluster to join. Default: start one here.")]
Workers = Annotated[int, Option(min=1, help="Learner processes; each holds the model.")]
Gpu = Annotated[
    bool | None, Option("--gpu/--no-gpu", help="A GPU for each of them. Default: where the cluster has one.")
]
Out = Annotated[Path | None, Option(help="Folder of metrics and checkpoints. Default: DATA/train/<version>.")]
CheckpointEvery = Annotated[int | None, Option(min=1, help="Steps between checkpoints. Default: none.")]
Resume = Annotated[bool, Option("--resume", help="Go on from the checkpoint in --out.")]

Harness = Annotated[
    str | None, Option(help="With --tasks: the agent program that the policy learns in, or several: A,B.")
]
Command = Annotated[str | None, Option(help="For --harness command: any program, as with forge run.")]
Tasks = Annotated[
    Path | None, Option(help="Learn from new sessions of these tasks, a JSON object a line: id, prompt, files, grader.")
]
Batches = Annotated[int, Option(min=1, help="With --tasks: how often sessions are drawn and learned from.")]
Groups = Annotated[int, Option(min=1, help="Groups of a batch; each is one task in one harness.")]
GroupSize = Annotated[int, Option(min=2, help="Sessions of a group.")]
Draw = Annotated[int, Option(min=1, help="Sessions of a task drawn at a time, until a balanced group can be chosen.")]
DrawMax = Annotated[int, Option(min=2, help="Sessions drawn for one group at most.")]
DropOnAbort = Annotated[
    bool, Option("--drop-group-on-abort", help="Drop a group that broken off sessions leave short; else it is smaller.")
]
Concurrency = Annotated[int, Option(min=1, help="Sessions at the same time, on all nodes together.")]
Timeout = Annotated[float, Option(help="Seconds after which a harness and all it started is ended.")]
Policy = Annotated[
    str | None, Option(help="URL of a policy server that every node reaches. [the embedded one, started and stopped]")
]
Sampling = Annotated[str, Option(help='JSON laid over the training sampling: {"max_tokens": 512}.')]
Confinement = Annotated[RunnerName, Option(help="local: confined by bubblewrap. unconfined: as you, with your files.")]


def register(app: typer.Typer) -> None:
    app.command(name="train", epilog=EXAMPLE)(train)


def train(
    data: Data = Path("data"),
    run: Runs = None,
    model: Model = None,
    objective: Aim = Objective.GRPO,
    steps: Steps = 1,
    step_sessions: StepSessions = None,
    lr: Rate = 1e-5,
    clip_low: ClipLow = 0.2,
    clip_high: ClipHigh = 0.28,
    baseline: Against = Baseline.STD,
    mean: MeanOver = Mean.SESSION,
    correction: Correct = Correction.TRUNCATED,
    kl: Kl = 0.0,
    overlong: TooLong = Overlong.KEEP,
    lora_rank: LoraRank = None,
    micro_tokens: MicroTokens = None,
    max_staleness: MaxStaleness = 0,
    unverified: Unverified = False,
    control: ControlUrl = None,
    control_token_file: TokenFile = None,
    seed: Seed = 0,
    ray: RayAddress = None,
    workers: Workers = 1,
    gpu: Gpu = None,
    out: Out = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    harness: Harness = None,
    command: Command = None,
    tasks: Tasks = None,
    batches: Batches = 1,
    groups: Groups = 4,
    group_size: GroupSize = 4,
    draw: Draw = 4,
    draw_max: DrawMax = 8,
    drop_group_on_abort: DropOnAbort = False,
    concurrency: Concurrency = 4,
    timeout: Timeout = 600,
    policy: Policy = None,
    sampling: Sampling = "{}",
    runner: Confinement = RunnerName.LOCAL,
) -> None:
    """Learn from sessions: a clipped policy gradient step, new weights, publication; again.

    With --tasks the sessions are new ones, run in the harness on every node of the Ray cluster; without, those that
    were recorded. --max-staleness 0 draws the sessions of a batch on the weights that learn from it; from 1 on they
    run ahead of the trainer, so many batches at most.

    Rewards are compared between the sessions of one group. Groups whose rewards are all equal teach nothing: if no
    other is left, the command says so and exits with code 3.
    """
    hyper = Hyper(
        objective=objective,
        lr=lr,
        clip_low=clip_low,
        clip_high=clip_high,
        correction=correction,
        kl=kl,
        lora_rank=lora_rank,
        micro_tokens=micro_tokens,
        seed=seed,
    )
    config = TrainConfig(
        data=data.absolute(),  # the learners are other processes, elsewhere
        runs=tuple(run or ()),
        model=model,
        steps=steps,
        step_sessions=step_sessions,
        hyper=hyper,
        baseline=baseline,
        mean=mean,
        overlong=overlong,
        max_staleness=max_staleness if max_staleness >= 0 else None,
        unverified=unverified,
        control=control,
        control_token_file=control_token_file,
        ray=ray,
        workers=workers,
        gpu=gpu,
        out=out.absolute() if out is not None else None,
        checkpoint_every=checkpoint_every,
        resume=resume,
    )
    if tasks is None:
        if harness is not None:
            raise BadInput("--harness says where tasks are run, and there are none", "add --tasks FILE.jsonl")
        report = _offline(config)
    else:
        told = _run(config, harness, command, tasks, policy, concurrency, timeout, sampling, runner)
        balance = Balance(size=group_size, stride=draw, maximum=draw_max, drop_on_abort=drop_group_on_abort)
        report = _online(config, told, balance, groups, batches)
    typer.echo(f"metrics    {report.metrics}")


def _run(
    config: TrainConfig,
    harness: str | None,
    command: str | None,
    tasks: Path,
    policy: str | None,
    concurrency: int,
    timeout: float,
    sampling: str,
    runner: RunnerName,
) -> RunConfig:
    """What the sessions of a training run are told."""
    from forge.run_config import TRAINING_SAMPLING, RunConfig, new_run_id
    from forge.runners import find
    from forge.tasks import read

    if harness is None:
        raise BadInput("--tasks are run in a harness", "name one: --harness pi; see forge harness list")
    if config.control is not None:
        raise BadInput("--control is for recorded sessions: with --tasks every node has a proxy", "leave it away")
    if len(config.runs) > 1:
        raise BadInput("with --tasks there is one run, the new one", "give --run once, as its name")
    return RunConfig(
        adapters=adapters_named(harness, command),
        tasks=read(tasks),
        runner=find(runner.value),
        data=config.data.absolute(),
        run_id=config.runs[0] if config.runs else new_run_id(),
        concurrency=concurrency,
        seconds=timeout,
        sampling={**TRAINING_SAMPLING, **json_object("--sampling", sampling)},
        policy=policy,
        modules=tasks.absolute().parent,
    )


def _offline(config: TrainConfig) -> TrainReport:
    from forge.terminal import console
    from forge.trainer import loop
    from forge.trainer.table import LiveTable

    with LiveTable(console()) as table:
        return loop.train(config, table.say, table.step)


def _online(config: TrainConfig, run: RunConfig, balance: Balance, groups: int, batches: int) -> TrainReport:
    from forge.rollouts.online import train as online
    from forge.rollouts.settings import RolloutConfig
    from forge.signals import until_signalled
    from forge.terminal import console
    from forge.trainer.table import LiveTable

    rollouts = RolloutConfig(
        run=run,
        balance=balance,
        groups=groups,
        batches=batches,
        max_staleness=-1 if config.max_staleness is None else config.max_staleness,
        learners=config.workers,
        seed=config.hyper.seed,
    )
    with LiveTable(console()) as table:
        training = online(replace(config, data=run.data), rollouts, table.say, table.step)
        return asyncio.run(until_signalled(training))
