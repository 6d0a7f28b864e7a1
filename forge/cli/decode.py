"""``forge decode``: turns the journal of a data directory into its dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.option_values import size_in_bytes
from forge.proxy import logs
from forge.storage.names import CATALOG


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: forge decode --data ./data --once")
    def decode(
        data: Annotated[Path, typer.Option(help="Data directory of a proxy.", exists=True, file_okay=False)] = Path(
            "data"
        ),
        once: bool = typer.Option(
            False, help="Decode what is there and end. Calls that a dead proxy left open become interrupted rows."
        ),
        rebuild: bool = typer.Option(
            False, help="Make the dataset anew from the journal's first frame; refused if segments are missing."
        ),
        journal_keep: str = typer.Option("1G", help="Decoded journal to keep for a rebuild; the oldest goes first."),
        catalog: str = typer.Option(
            "",
            help="SQL index: postgresql://HOST/NAME. Default: the file catalog.db in the data directory.",
            envvar=CATALOG,
        ),
        log_format: Annotated[logs.LogFormat, typer.Option(help="json: one object per line.")] = logs.LogFormat.TEXT,
        follow_parent: int | None = typer.Option(None, hidden=True, help="End when the parent, of this pid, does."),
    ) -> None:
        """Turn the journal of a data directory into Parquet: calls, sessions, samples.

        A running proxy has its own decoder; use this for a data directory whose proxy has ended, or with --rebuild.
        """
        from forge.proxy.recording import decode_process
        from forge.storage.dataset import existing

        if follow_parent is None:  # a proxy's decoder may be there before its first frame
            existing(data)
        keep = size_in_bytes("--journal-keep", journal_keep)
        logs.configure(log_format)
        decode_process.run(
            data,
            once=once,
            rebuild=rebuild,
            keep_bytes=keep,
            catalog_url=catalog or None,
            follow_parent=follow_parent,
        )
