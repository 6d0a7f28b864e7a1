"""The dataset as its readers see it: runs, whole calls, sessions, samples.

Any moment is a good one to read: parts appear by rename, and a late reward is a session row of a higher revision.
``damaged`` names the files that could not be read; they never hide the others. Writing is the decoder's, but for
``write_samples``, which gives a recipe of one's own its set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from forge.storage import rows
from forge.storage.dataset_calls import UNREADABLE, CallReader, note_damage
from forge.storage.errors import BadInput
from forge.storage.files import write_whole
from forge.storage.parts import Damaged, parts_in, read_part, run_dir, runs_in, table_dir, write_part, writer_of
from forge.storage.recipe import DEFAULT, Recipe
from forge.storage.records import Call, Sample, Session

RECIPE_FILE: Final = "_recipe.json"
"""Beside the samples it made; readers of Parquet folders skip names with a leading underscore."""


class Dataset:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.damaged: list[Damaged] = []

    def runs(self) -> list[str]:
        """Runs that have a session or a call."""
        return sorted({run for table in ("calls", "sessions") for run in runs_in(table_dir(self.data, table))})

    def calls(self, run_id: str | None = None, session_id: str | None = None) -> Iterator[Call]:
        """Whole calls, prompts checked by their hash; those of one session in the order of ``seq``."""
        folder = table_dir(self.data, "calls")
        for run in [run_id] if run_id is not None else runs_in(folder):
            found = CallReader(parts_in(folder, run), self.damaged, session_id=session_id)
            yield from found if session_id is None else sorted(found, key=lambda c: (c.seq, c.call_id, c.choice))

    def call_tables(self, columns: Sequence[str], run_id: str | None = None) -> Iterator[pa.Table]:
        """A few columns of the calls as Arrow tables, one per part; prompts stay as they are stored."""
        return self._tables(parts_in(table_dir(self.data, "calls"), run_id), "calls", columns)

    def sessions(self, run_id: str | None = None, *, writer: int | None = None) -> list[Session]:
        """The latest revision of every session, in the order they were opened. ``writer``: only of its own."""
        latest: dict[str, Session] = {}
        parts = parts_in(table_dir(self.data, "sessions"), run_id)
        mine = [path for path in parts if writer is None or writer_of(path) == writer]
        for table in self._tables(mine, "sessions"):
            for session in rows.sessions(table):
                known = latest.get(session.session_id)
                if known is None or known.revision <= session.revision:
                    latest[session.session_id] = session
        return sorted(latest.values(), key=lambda s: (s.open_us, s.session_id))

    def session(self, session_id: str) -> Session | None:
        """The latest revision of one."""
        found: list[Session] = []
        for table in self._tables(parts_in(table_dir(self.data, "sessions"), None), "sessions"):
            found += rows.sessions(table.filter(pc.equal(table["session_id"], session_id)))
        return max(found, key=lambda session: session.revision, default=None)

    def samples(self, run_id: str | None = None, recipe: str = DEFAULT.name) -> Iterator[Sample]:
        """The rows of a recipe's set."""
        for table in self.sample_tables(run_id, recipe):
            yield from rows.samples(table)

    def sample_tables(
        self, run_id: str | None = None, recipe: str = DEFAULT.name, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        """The same, or a few columns of it, as Arrow tables, one per part."""
        return self._tables(parts_in(table_dir(self.data, "samples", recipe), run_id), "samples", columns)

    def write_samples(self, run_id: str, samples: Iterable[Sample], recipe: Recipe) -> Path:
        """Makes ``samples`` the run's rows in the set of ``recipe``, in place of those it had there."""
        if recipe.name == DEFAULT.name:
            raise BadInput(f"the set {recipe.name!r} is the decoder's", "give your recipe a name of its own")
        note_recipe(self.data, recipe)
        path = run_dir(table_dir(self.data, "samples", recipe.name), run_id) / "part-all.parquet"
        write_part(path, "samples", list(samples), metadata={"forge.recipe": recipe.to_json().decode()})
        return path

    def _tables(self, paths: Iterable[Path], table: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        for path in paths:
            try:
                data = read_part(path, table, columns)
            except UNREADABLE as error:
                note_damage(self.damaged, path, str(error))
                continue
            yield data


def existing(data: Path) -> Path:
    """``data`` as it is. Raises ``BadInput`` if nothing was ever recorded there."""
    if not any((data / part).is_dir() for part in ("journal", "calls", "sessions", "samples")):
        raise BadInput(
            f"{data} is no data directory: it has no journal", "name one with --data, or record: forge run --help"
        )
    return data


def note_recipe(data: Path, recipe: Recipe) -> None:
    """Writes the recipe beside its set. Raises ``BadInput`` if another recipe of that name made the rows there."""
    path = table_dir(data, "samples", recipe.name) / RECIPE_FILE
    text = recipe.to_json()
    if not path.exists():
        write_whole(path, lambda unfinished: unfinished.write_bytes(text), crash_name="recipe")
    elif path.read_bytes() != text:
        raise BadInput(
            f"the samples in {path.parent} were made by another recipe named {recipe.name!r}: {path.read_text()}",
            "give the new recipe another name, or delete that folder",
        )
