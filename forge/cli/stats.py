"""``forge stats``: the counts of one run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command(name="stats", epilog="Example: forge stats hello --data data")(stats)


def stats(
    run: Annotated[str, typer.Argument(help="The run; `forge sessions` names the runs.")],
    data: Annotated[Path, typer.Option(help="The data directory.")] = Path("data"),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Count a run: sessions, rewards, calls by kind and status, joins by cause, tokens, and what of them can train."""
    from forge.overview import damage_lines, opened
    from forge.run_stats import run_stats, stats_table
    from forge.terminal import console

    dataset = opened(data)
    found = run_stats(dataset, run)
    if as_json:
        print(json.dumps(found.told(), indent=2))
    else:
        console().print(stats_table(found))
    print(*damage_lines(dataset), sep="\n", end="\n" if dataset.damaged else "", file=sys.stderr)
