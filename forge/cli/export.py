"""``forge export``: recorded sessions as a trainer's file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from forge.adapters.trainers.base import Arguments

EXAMPLE = "Example: forge export --to verl --data DATA --out rows.parquet"


def register(app: typer.Typer) -> None:
    app.command(name="export", epilog=EXAMPLE)(export)


def export(
    to: Annotated[
        str, Option(help="verl, trl, slime, skyrl, prime-rl, tinker, sft, sft-tokens or messages.", metavar="TRAINER")
    ],
    out: Annotated[Path, Option(help="The file to write, or a folder for it.")],
    runs: Annotated[list[str] | None, Argument(metavar="[RUN]...", help="Only these runs. Default: all.")] = None,
    data: Annotated[Path, Option(help="Data directory that the sessions were recorded in.")] = Path("data"),
    set_name: Annotated[
        str | None, Option("--set", metavar="NAME", help="A stored set of samples; with a recipe, the new set's name.")
    ] = None,
    kinds: Annotated[
        str | None, Option(help="Recipe: kinds of calls to train, as main,subagent. Default: those and compaction.")
    ] = None,
    max_tokens: Annotated[
        int | None, Option(min=2, help="Recipe: longest row; what is beyond is cut from its end.")
    ] = None,
    truncated: Annotated[bool, Option(help="Recipe: train turns that a length limit ended.")] = True,
    straddling: Annotated[bool, Option(help="Recipe: train turns sampled while the weights changed.")] = True,
    unrewarded: Annotated[
        bool, Option("--unrewarded", help="Keep rows without a reward (sft, sft-tokens, messages).")
    ] = False,
    arguments: Annotated[Arguments, Option(help="Tool arguments in sft: parsed, or as text.")] = Arguments.OBJECT,
) -> None:
    """Write recorded sessions as a trainer's file: exact ids, masks, log probabilities, rewards, groups.

    Evaluations are never exported; what else is left out is counted by reason. The recipe and its hash stand beside
    the file, in FILE.export.json.
    """
    from forge.export import ExportConfig, account
    from forge.export import export as write

    report = write(
        ExportConfig(
            to=to,
            data=data,
            out=out,
            runs=tuple(runs or ()),
            set_name=set_name,
            kinds=tuple(kind.strip() for kind in kinds.split(",")) if kinds is not None else None,
            max_tokens=max_tokens,
            truncated=truncated,
            straddling=straddling,
            unrewarded=unrewarded,
            arguments=arguments,
        )
    )
    typer.echo(f"exported   {account(report)}")
    typer.echo(f"file       {report.path} (account: {report.account.name})")
    if report.caution:
        typer.echo(f"note       {report.caution}")
