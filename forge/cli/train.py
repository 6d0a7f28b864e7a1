"""``forge train``: options to a ``TrainConfig``, lines to the terminal. Torch and Ray load when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from forge.trainer.config import Baseline, Correction, Hyper, Mean, Objective, Overlong, TrainConfig

EXAMPLE = "Example: forge train --data DATA --lr 2e-6 --control http://127.0.0.1:8101"


def register(app: typer.Typer) -> None:
    app.command(name="train", epilog=EXAMPLE)(train)


def train(
    data: Annotated[Path, Option(help="Data directory that the sessions were recorded in.")] = Path("data"),
    run: Annotated[
        list[str] | None, Option(help="Learn from this run only; may be given several times. Default: all.")
    ] = None,
    model: Annotated[
        str | None, Option(help="Model directory or name to start from. Default: the published weights.")
    ] = None,
    objective: Annotated[
        Objective, Option(help="grpo: from rewards. sft: the likelihood of every trained token.")
    ] = Objective.GRPO,
    steps: Annotated[int, Option(min=1, help="Optimisation steps.")] = 1,
    step_sessions: Annotated[int | None, Option(min=1, help="Sessions of one step. Default: all.")] = None,
    lr: Annotated[float, Option(min=0.0, help="AdamW learning rate; the first step moves each weight by it.")] = 1e-5,
    clip_low: Annotated[float, Option(min=0, max=1, help="Below 1 - this, a ratio stops a token's gradient.")] = 0.2,
    clip_high: Annotated[float, Option(min=0, help="Above 1 + this, a ratio stops a token's gradient.")] = 0.28,
    baseline: Annotated[
        Baseline, Option(help="A reward less its group's mean, by its spread (std) or not; or less the others' mean.")
    ] = Baseline.STD,
    mean: Annotated[Mean, Option(help="Over sessions, then each one's tokens; or over all tokens.")] = Mean.SESSION,
    correction: Annotated[
        Correction, Option(help="Of the gap between recorded log probs and the trainer's: see docs/training.md.")
    ] = Correction.TRUNCATED,
    kl: Annotated[float, Option(min=0, help="Weight of the penalty for leaving the first model; 0: none.")] = 0.0,
    overlong: Annotated[
        Overlong, Option(help="Rows that a length limit ended: learned from, or only compared with.")
    ] = Overlong.KEEP,
    lora_rank: Annotated[int | None, Option(min=1, help="Train adapters of this rank. Default: all weights.")] = None,
    micro_tokens: Annotated[
        int | None,
        Option(min=1, help="Tokens of a forward pass; bounds memory only. Default: by device."),
    ] = None,
    max_staleness: Annotated[
        int, Option(min=-1, help="Leave out samples of weights more versions older than this; -1 takes all.")
    ] = 0,
    unverified: Annotated[
        bool, Option("--unverified", help="Learn also from runs that fail verification (see `forge verify`).")
    ] = False,
    control: Annotated[str | None, Option(help="Control URL of a proxy that is to load the new weights.")] = None,
    control_token_file: Annotated[
        Path | None,
        Option(envvar="FORGE_CONTROL_TOKEN_FILE", help="Its token file. Default: DATA/control.token."),
    ] = None,
    seed: Annotated[int, Option(help="Seed of every random generator.")] = 0,
    ray: Annotated[str | None, Option(help="Address of a Ray cluster to join. Default: start one here.")] = None,
    workers: Annotated[int, Option(min=1, help="Learner processes; each holds the model.")] = 1,
    gpu: Annotated[
        bool | None, Option("--gpu/--no-gpu", help="A GPU for each of them. Default: where the cluster has one.")
    ] = None,
    out: Annotated[
        Path | None, Option(help="Folder of metrics and checkpoints. Default: DATA/train/<version>.")
    ] = None,
    checkpoint_every: Annotated[int | None, Option(min=1, help="Steps between checkpoints. Default: none.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on from the checkpoint in --out.")] = False,
) -> None:
    """Learn from recorded sessions: a clipped policy gradient step, new weights, publication.

    Rewards are compared between the sessions of one group. Groups whose rewards are all equal teach nothing: if no
    other is left, the command says so and exits with code 3.
    """
    from forge.overview import console
    from forge.trainer import loop
    from forge.trainer.table import LiveTable

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
        data=data,
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
        out=out,
        checkpoint_every=checkpoint_every,
        resume=resume,
    )
    with LiveTable(console()) as table:
        report = loop.train(config, table.say, table.step)
    typer.echo(f"metrics    {report.metrics}")
