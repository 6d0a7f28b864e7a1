"""``forge doctor``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from forge.storage.errors import Exit

EXAMPLE = "Example: forge doctor --policy http://127.0.0.1:8000"


def register(app: typer.Typer) -> None:
    app.command(name="doctor", epilog=EXAMPLE)(doctor)


def doctor(
    policy: Annotated[
        str | None, Option(help="URL of a policy server. [the embedded one, started and stopped]")
    ] = None,
    policy_key_file: Annotated[Path | None, Option(help="File with its key.")] = None,
) -> None:
    """Say what is installed, which policy server answers, what it can give, and make one real call.

    Exit code 4 if something needed is missing.
    """
    from rich.table import Table

    from forge.doctor import Finding, installed
    from forge.doctor import policy as examine
    from forge.signals import until_signalled
    from forge.storage.errors import ForgeError
    from forge.terminal import console

    out = console()
    found = list(installed())
    try:
        looked = examine(policy, policy_key_file, lambda text: out.print(text, style="dim", markup=False))
        found += asyncio.run(until_signalled(looked))
    except ForgeError as error:
        found.append(Finding("policy server", False, error.message, error.hint))
    table = Table(box=None, show_header=False, pad_edge=False)
    for each in found:
        table.add_row("ok" if each.good else "--", each.what, each.detail, "" if each.good else f"next: {each.hint}")
    out.print(table)
    out.print("\nGive a harness this base URL once `forge proxy` runs: http://127.0.0.1:8100/v1", highlight=False)
    needed = [each for each in found if not each.good and not each.what.startswith("harness ")]
    raise typer.Exit(Exit.UNAVAILABLE if needed else Exit.OK)
