"""``forge report``: a training run as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from forge.storage.errors import BadInput

EXAMPLE = "Example: forge report 3 --data DATA"


def register(app: typer.Typer) -> None:
    app.command(name="report", epilog=EXAMPLE)(report)


def report(
    run: Annotated[str, Argument(help="Of DATA/train, or the path of a run's folder.")],
    data: Annotated[Path, Option(help="Data directory that the sessions were recorded in.")] = Path("data"),
    out: Annotated[Path | None, Option(help="The HTML file. Default: report.html in the run's folder.")] = None,
) -> None:
    """Write what a training run did as one HTML file that works offline: its curves, and links into its sessions."""
    from forge.report.page import write

    named = data / "train" / run
    folder = named if named.is_dir() else Path(run)
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in (data / "train").glob("*"))) or "none"
        raise BadInput(f"no training run {run!r} in {data}", f"there are: {there}")
    typer.echo(write(folder, data, out or folder / "report.html"))
