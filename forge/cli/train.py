"""``forge train``: options to a ``TrainConfig``, lines to the terminal. Torch and Ray load when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from forge.trainer.config import Hyper, TrainConfig

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
    steps: Annotated[int, Option(min=1, help="Optimisation steps; each is one pass over all kept samples.")] = 1,
    lr: Annotated[float, Option(min=0.0, help="AdamW learning rate; the first step moves each weight by it.")] = 1e-5,
    clip_low: Annotated[float, Option(min=0, max=1, help="Below 1 - this, a ratio stops a token's gradient.")] = 0.2,
    clip_high: Annotated[float, Option(min=0, help="Above 1 + this, a ratio stops a token's gradient.")] = 0.28,
    micro_tokens: Annotated[
        int | None,
        Option(min=1, help="Tokens of a forward pass; bounds memory only. Default: by device."),
    ] = None,
    group_std: Annotated[bool, Option(help="Divide advantages by their group's standard deviation.")] = True,
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
    out: Annotated[Path | None, Option(help="Folder of metrics.jsonl. Default: DATA/train/<version>.")] = None,
) -> None:
    """Learn from recorded sessions: a clipped policy gradient step, new weights, publication.

    Rewards are compared between the sessions of one group. Groups whose rewards are all equal teach nothing: if no
    other is left, the command says so and exits with code 3.
    """
    from forge.trainer import loop

    hyper = Hyper(lr=lr, clip_low=clip_low, clip_high=clip_high, micro_tokens=micro_tokens, seed=seed)
    config = TrainConfig(
        data=data,
        runs=tuple(run or ()),
        model=model,
        steps=steps,
        hyper=hyper,
        divide_by_std=group_std,
        max_staleness=max_staleness if max_staleness >= 0 else None,
        unverified=unverified,
        control=control,
        control_token_file=control_token_file,
        ray=ray,
        out=out,
    )
    report = loop.train(config, typer.echo)
    typer.echo(f"metrics    {report.metrics}")
