"""``forge sessions``: what was recorded, a line per session."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from forge.storage.errors import BadInput


def register(app: typer.Typer) -> None:
    app.command(name="sessions")(sessions)


def sessions(
    data: Annotated[Path, typer.Option(help="The data directory.")] = Path("data"),
    run: Annotated[str, typer.Option(help="Only this run.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """List the recorded sessions: calls, tokens, training rows, reward, status.

    Example: forge sessions --data data --run hello
    """
    from forge.overview import count, damage_lines, opened, sessions_table
    from forge.terminal import console

    dataset = opened(data)
    found = dataset.sessions(run or None)
    if run and not found:
        raise BadInput(f"no session of run {run!r} in {data}", f"runs there: {', '.join(dataset.runs()) or 'none'}")
    if as_json:
        for session in found:
            print(json.dumps(asdict(session)))
    else:
        console().print(sessions_table(found, count(dataset, run or None)))
        print(f"{len(found)} sessions; one of them in full: forge show SESSION --data {data}")
    print(*damage_lines(dataset), sep="\n", end="\n" if dataset.damaged else "", file=sys.stderr)
