"""``forge show``: one session, as the tree of its calls or as tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.storage.errors import BadInput

if TYPE_CHECKING:
    from forge.storage.dataset import Dataset
    from forge.storage.records import Session


def register(app: typer.Typer) -> None:
    app.command(name="show", epilog="Example: forge show s01j --data data --tokens")(show)


def show(
    session: Annotated[str, typer.Argument(help="A session id, or enough of its beginning to tell it.")],
    call: Annotated[
        str | None, typer.Argument(help="With --tokens, one call: its number in the tree, or its id.")
    ] = None,
    data: Annotated[Path, typer.Option(help="The data directory.")] = Path("data"),
    tokens: Annotated[
        bool, typer.Option("--tokens", help="The text of its training rows, or of CALL, coloured by mask and log prob.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Model directory or name whose tokenizer reads the ids. [the run's, if known]")
    ] = None,
) -> None:
    """Show one session: its calls as a tree, how each joins the one before, and what is trainable.

    A stretch of calls that go straight on is one line. With --tokens its ids are read: context is dim, sampled tokens
    are coloured by their log probability, and underlined where a training row trains them.
    """
    from forge.overview import damage_lines, opened
    from forge.session_tree import session_tree
    from forge.terminal import console

    if call is not None and not tokens:
        raise BadInput(f"CALL {call!r} is given without --tokens", "forge show SESSION --tokens CALL")
    dataset = opened(data)
    found = _session(dataset, session)
    calls = list(dataset.calls(found.run_id, found.session_id))
    if tokens:
        from forge.token_view import lines, reader

        for line in lines(found, calls, call, reader(data, calls, model)):
            console().print(line, soft_wrap=True)
    else:
        console().print(session_tree(found, calls))
    print(*damage_lines(dataset), sep="\n", end="\n" if dataset.damaged else "", file=sys.stderr)


def _session(dataset: Dataset, beginning: str) -> Session:
    found = [s for s in dataset.sessions() if s.session_id.startswith(beginning)]
    if len(found) != 1:
        what = "no session begins" if not found else f"{len(found)} sessions begin"
        raise BadInput(
            f"{what} with {beginning!r} in {dataset.data}", f"forge sessions --data {dataset.data} lists them"
        )
    return found[0]
