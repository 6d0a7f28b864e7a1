"""The command ``forge``: one module per command, found by name.

Each module in this package has ``register(app)``. Modules import nothing heavy at the top: ``forge --help`` must
not load torch or ray (a test holds that).
"""

from __future__ import annotations

import errno
import importlib
import pkgutil
import sys

import typer

from forge import __version__
from forge.proxy.redaction import harmless, redact
from forge.storage.errors import Exit, ForgeError

EPILOG = "Exit codes: 0 done, 1 failed, 2 bad input, 3 data that cannot train, 4 something needed is not there."
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Writing to an open file says no name."""


def _version(value: bool) -> None:
    if value:
        typer.echo(f"forge {__version__}")
        raise typer.Exit


def build() -> typer.Typer:
    """The whole command tree."""
    app = typer.Typer(
        name="forge",
        help="Train agents inside the harness they are deployed in.",
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    @app.callback()
    def root(
        version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    ) -> None:
        """Train agents inside the harness they are deployed in."""

    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}").register(app)
    return app


def main() -> None:
    """Entry point: turns a ``ForgeError`` into a message, its next step and its exit code."""
    try:
        build()()
    except ForgeError as error:
        print(f"error: {harmless(redact(error.message))}", file=sys.stderr)
        if error.hint:
            print(f"  next: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise  # no file that a user named: a bug, and its traceback tells where
        where = f"cannot use {error.filename}: " if error.filename is not None else ""
        print(f"error: {where}{error.strerror}", file=sys.stderr)
        print("  next: check that path, its rights and the free space, or name another", file=sys.stderr)
        sys.exit(Exit.UNAVAILABLE)
    except SystemExit as ended:
        if ended.code == Exit.INTERRUPTED:  # typer's own end of a Ctrl-C, which says nothing
            print("interrupted; what was recorded stays: forge sessions lists it", file=sys.stderr)
        raise
