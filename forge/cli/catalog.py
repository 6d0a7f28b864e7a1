"""``forge catalog``: the SQL index of one data directory or many, made anew or listed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.storage.errors import Unavailable
from forge.storage.names import CATALOG

if TYPE_CHECKING:
    from forge.storage.catalog import Catalog

Data = Annotated[Path, typer.Option(help="Data directory.", exists=True, file_okay=False)]
Url = Annotated[str | None, typer.Option("--catalog", help="postgresql://HOST/NAME. [DATA/catalog.db]", envvar=CATALOG)]


def register(app: typer.Typer) -> None:
    catalog = typer.Typer(no_args_is_help=True, help="The SQL index of runs and sessions; the decoder keeps it.")
    catalog.command("rebuild")(rebuild)
    catalog.command("runs")(runs)
    app.add_typer(catalog, name="catalog")


def rebuild(data: Data = Path("data"), url: Url = None) -> None:
    """Make the data directory's place in the catalog anew from its dataset; those of others stay.

    Example: forge catalog rebuild --data DATA --catalog postgresql://HOST/NAME
    """
    from forge.storage.dataset import existing

    existing(data)
    with _open(data, url) as catalog:
        catalog.rebuild()
        mine = [run for run in catalog.runs() if run["source"] == catalog.source]
    total = {name: sum(run[name] for run in mine) for name in ("sessions", "calls")}
    typer.echo(f"{len(mine)} run{'s' * (len(mine) != 1)}, {total['sessions']} sessions, {total['calls']} calls")


def runs(data: Data = Path("data"), url: Url = None) -> None:
    """List the runs of every data directory that the catalog knows.

    Example: forge catalog runs --data DATA
    """
    from rich.table import Table

    from forge.terminal import console

    with _open(data, url) as catalog:
        found = catalog.runs()
    table = Table("run", "began", "sessions", "calls", "MB", "data directory", box=None)
    for run in found:
        began = (
            "" if run["first_us"] is None else f"{datetime.fromtimestamp(run['first_us'] / 1e6, UTC):%Y-%m-%d %H:%M}"
        )
        size = f"{run['bytes'] / 1e6:.1f}"
        table.add_row(run["run_id"], began, str(run["sessions"]), str(run["calls"]), size, run["source"])
    console().print(table)


@contextmanager
def _open(data: Path, url: str | None) -> Iterator[Catalog]:
    from sqlalchemy.exc import SQLAlchemyError

    from forge.storage.catalog import Catalog

    catalog = Catalog(data, url)
    try:
        yield catalog
    except SQLAlchemyError as error:
        raise Unavailable(
            f"the catalog does not answer: {str(error).splitlines()[0]}",
            "is the database up? Recording goes on without it, and it catches up; see --catalog",
        ) from error
    finally:
        catalog.close()
