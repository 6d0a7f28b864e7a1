"""``forge sessions`` and ``forge show``: what was recorded."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from forge.storage.errors import BadInput

DATA = typer.Option(Path("data"), "--data", help="The data directory.")


def register(app: typer.Typer) -> None:
    app.command(name="sessions")(sessions)
    app.command(name="show")(show)


def sessions(
    data: Path = DATA,
    run: str = typer.Option("", "--run", help="Only this run."),
    as_json: bool = typer.Option(False, "--json", help="One JSON object per line."),
) -> None:
    """List the recorded sessions: calls, tokens, training rows, reward, status.

    Example: forge sessions --data data --run hello
    """
    from forge.overview import console, count, sessions_table
    from forge.storage.dataset import Dataset, existing

    dataset = Dataset(existing(data))
    found = dataset.sessions(run or None)
    if run and not found:
        raise BadInput(f"no session of run {run!r} in {data}", f"runs there: {', '.join(dataset.runs()) or 'none'}")
    if as_json:
        for session in found:
            print(json.dumps(asdict(session)))
        return
    console().print(sessions_table(found, count(data, run or None)))
    print(f"{len(found)} sessions; one of them in full: forge show SESSION --data {data}")


def show(
    session: str = typer.Argument(help="A session id, or enough of its beginning to tell it."),
    data: Path = DATA,
) -> None:
    """Show one session: its calls as a tree, how each joins the one before, and what is trainable.

    Example: forge show s01j --data data
    """
    from forge.overview import console, session_tree
    from forge.storage.dataset import Dataset, existing

    dataset = Dataset(existing(data))
    found = [s for s in dataset.sessions() if s.session_id.startswith(session)]
    if len(found) != 1:
        what = "no session begins" if not found else f"{len(found)} sessions begin"
        raise BadInput(f"{what} with {session!r} in {data}", f"forge sessions --data {data} lists them")
    console().print(session_tree(found[0], list(dataset.calls(found[0].run_id, found[0].session_id))))
