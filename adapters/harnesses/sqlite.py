"""Rows out of a SQLite file that a harness left behind: read from a copy, with an end to every question.

The model could write to that file. The non-obvious fact: most of a session may still lie in the write-ahead log
(``-wal``) of a program that was ended, so that file is read too; opening the kept one would change it.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

STEPS: Final = 1_000_000
ROUNDS_MAX: Final = 20
"""Of ``STEPS`` of SQLite's machine: a view over itself would be counted for ever."""
VALUE_MAX: Final = 64 << 20
"""Bytes of one value."""


def rows(file: Path, query: str) -> Sequence[Sequence[Any]] | None:
    """None where the file is not there, or is not what the query takes it for."""
    if not file.exists():
        return None
    with tempfile.TemporaryDirectory(prefix="forge-") as folder:
        copy = Path(folder) / "copy"
        shutil.copyfile(file, copy)
        log = file.with_name(file.name + "-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name("copy-wal"))
        try:
            with closing(sqlite3.connect(copy)) as database:
                return _ask(database, query)
        except (sqlite3.Error, UnicodeDecodeError):
            return None


def _ask(database: sqlite3.Connection, query: str) -> Sequence[Sequence[Any]]:
    rounds = 0

    def enough() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds > ROUNDS_MAX

    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_MAX)
    database.set_progress_handler(enough, STEPS)
    return database.execute(query).fetchall()
