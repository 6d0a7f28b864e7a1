"""Where an export's rows come from: a stored set, or calls derived anew by a recipe of one's own, which is then stored.

Rows come with their session's latest reward. Knows no trainer. Rows are read twice (to choose, then to write), so what
is derived goes into the dataset first: nothing larger than a session and a part is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa

from forge.adapters.trainers.rows import with_session
from forge.storage.dataset import RECIPE_FILE, Dataset, existing
from forge.storage.dataset_calls import CallReader
from forge.storage.errors import BadInput
from forge.storage.parts import parts_in, read_part, table_dir
from forge.storage.recipe import DEFAULT, Recipe
from forge.storage.records import Sample, Session, SessionStatus
from forge.storage.samples import samples_of

SET: Final = "set="


class Source:
    """The rows of some runs in one set. ``recipe``: derive them anew by it first."""

    def __init__(self, data: Path, runs: Sequence[str], set_name: str, recipe: Recipe | None) -> None:
        self._dataset = Dataset(existing(data))
        self.runs = self._checked(runs)
        self.set_name = set_name
        self._sessions: dict[str, dict[str, Session]] = {
            run: {session.session_id: session for session in self._dataset.sessions(run)} for run in self.runs
        }
        if recipe is not None:
            self._derive(recipe)
        elif set_name not in (known := sets(data)):
            raise BadInput(f"{data} has no set of samples {set_name!r}", f"it has: {', '.join(known) or 'none'}")
        self.recipe = stored_recipe(data, set_name)

    def __iter__(self) -> Iterator[Sample]:
        for run in self.runs:
            sessions = self._sessions[run]
            for sample in self._dataset.samples(run, self.set_name):
                yield replace(sample, **with_session(sample, sessions.get(sample.session_id)))
        self._undamaged()

    def _checked(self, runs: Sequence[str]) -> tuple[str, ...]:
        known = self._dataset.runs()
        if missing := sorted(set(runs) - set(known)):
            raise BadInput(f"{self._dataset.data} has no run {missing[0]!r}", f"it has: {', '.join(known) or 'none'}")
        return tuple(dict.fromkeys(runs)) or tuple(known)

    def _derive(self, recipe: Recipe) -> None:
        for run in self.runs:
            parts = self._parts_by_session(run)
            samples: list[Sample] = []
            for session in self._sessions[run].values():
                if session.status != SessionStatus.OPEN:
                    read = CallReader(
                        parts.get(session.session_id, []), self._dataset.damaged, session_id=session.session_id
                    )
                    samples += samples_of(session, read, recipe)
            self._undamaged()
            self._dataset.write_samples(run, samples, recipe)

    def _parts_by_session(self, run: str) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = defaultdict(list)
        for path in parts_in(table_dir(self._dataset.data, "calls"), run):
            try:
                names = read_part(path, "calls", ["session_id"]).column("session_id")
            except (OSError, pa.ArrowException) as error:
                raise _broken(path, str(error)) from error
            for name in names.unique().to_pylist():
                found[name].append(path)
        return found

    def _undamaged(self) -> None:
        if self._dataset.damaged:
            raise _broken(self._dataset.damaged[0].path, self._dataset.damaged[0].reason)


def _broken(path: Path, reason: str) -> BadInput:
    return BadInput(
        f"{path} cannot be read: {reason}", "repair it with: forge decode --rebuild, or name the other runs only"
    )


def sets(data: Path) -> list[str]:
    """The sets of samples there are."""
    return sorted(unquote(path.name.removeprefix(SET)) for path in (data / "samples").glob(f"{SET}*"))


def stored_recipe(data: Path, set_name: str) -> dict[str, object]:
    """The recipe that stands beside a set."""
    path = table_dir(data, "samples", set_name) / RECIPE_FILE
    if not path.exists():
        return msgspec.json.decode(DEFAULT.to_json(), type=dict[str, object]) if set_name == DEFAULT.name else {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, object])
