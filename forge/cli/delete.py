"""``forge delete``: a run, or all old ones, with everything that belongs to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.storage.errors import BadInput
from forge.storage.names import CATALOG


def register(app: typer.Typer) -> None:
    app.command(name="delete", epilog="Example: forge delete hello --data data --yes")(delete)


def delete(
    run: Annotated[str | None, typer.Argument(help="The run; `forge sessions` names the runs.")] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Instead of one: all runs in which nothing happened for 12h, 30d, 8w.")
    ] = None,
    data: Annotated[Path, typer.Option(help="The data directory.")] = Path("data"),
    yes: Annotated[bool, typer.Option("--yes", help="Delete. Without it, only say what would go.")] = False,
    catalog: Annotated[
        str | None, typer.Option(help="SQL index: postgresql://HOST/NAME. [DATA/catalog.db]", envvar=CATALOG)
    ] = None,
) -> None:
    """Delete a run for good: rows, samples, frames of the journal, media that no other run uses, harness outputs.

    A run that a proxy may still write to is refused; others can be deleted while a proxy is up. Weights stay.
    """
    from forge.deletion import delete as delete_runs
    from forge.deletion import seconds
    from forge.terminal import console

    if (run is None) == (older_than is None):
        raise BadInput("which runs?", "name one, or give --older-than 30d")
    age = None if older_than is None else seconds("--older-than", older_than)
    gone, table = delete_runs(data, run, age, catalog_url=catalog, really=yes)
    console().print(table)
    runs = "1 run" if len(gone) == 1 else f"{len(gone)} runs"
    if not yes:
        print(f"{runs} would be deleted; nothing is yet: add --yes")
    else:
        print(f"{runs} deleted; a reader that was at it finds files gone, others find nothing of it")
