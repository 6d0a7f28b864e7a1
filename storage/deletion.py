"""A run is deleted: its rows, its frames, its media, its entries in the catalog.

Owns what of a data directory belongs to a run, and the order in which it goes. First its folders are renamed away, so
that a reader's glob finds a table of the run whole or not at all. Its frames go last but for those files, and while one
of them is there the run is: broken off anywhere, doing it again ends it. The decoder waits meanwhile, and everyone
else's data stay as they are. A run that somebody may still write to is refused.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from forge.storage import checkpoint as checkpoints
from forge.storage import crash
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, Unavailable
from forge.storage.files import lock_file
from forge.storage.journal import journal_dir, writers
from forge.storage.journal_void import RunFrames, frames_of, void, wipe_rest
from forge.storage.media import MediaStore, references
from forge.storage.names import check_name
from forge.storage.parts import run_dir, table_dir
from forge.storage.records import Session, SessionStatus

TRASH: Final = ".deleted-"
"""Begins the names of folders that are on their way out; readers of Parquet folders skip a leading dot."""
MEDIA_REST_S: Final = 3600.0
"""Media used this recently stay: a call that is being accepted may be about to name them."""


@dataclass(slots=True)
class Belongings:
    """What of a data directory belongs to one run."""

    run_id: str
    frames: RunFrames
    sessions: dict[str, Session] = field(default_factory=dict)
    folders: list[Path] = field(default_factory=list)
    media: list[Path] = field(default_factory=list)
    """Those that no other run refers to."""
    live: str = ""
    """Why somebody may still write to it."""

    @property
    def bytes(self) -> int:
        return self.frames.bytes + sum(size_of(path) for path in (*self.folders, *self.media))

    @property
    def last_us(self) -> int:
        """When something last happened to one of its sessions, else to one of its files."""
        times = [t for s in self.sessions.values() for t in (s.open_us, s.close_us, s.reward_us) if t is not None]
        return max(times) if times else max((path.lstat().st_mtime_ns // 1000 for path in self.folders), default=0)


class Deletion:
    """Of runs of one data directory; nothing else changes it while this is open (``deleting``)."""

    def __init__(self, data: Path, beside: Sequence[Path], live: Set[int]) -> None:
        """``live``: the writers whose proxies are up."""
        self._data = data
        self._beside = beside
        self._live_writers = live

    def belongings(self, run_ids: Sequence[str]) -> list[Belongings]:
        """Of each; the journal is read once for all of them."""
        frames = frames_of(self._data, [check_name("the run", run_id) for run_id in run_ids])
        return [self._belongings(run_id, frames[run_id]) for run_id in run_ids]

    def _belongings(self, run_id: str, frames: RunFrames) -> Belongings:
        sets = sorted((self._data / "samples").glob("set=*"))
        tables = [table_dir(self._data, "sessions"), *sets, table_dir(self._data, "calls")]
        folders = [*(run_dir(table, run_id) for table in tables), *(folder / run_id for folder in self._beside)]
        mine = Belongings(run_id, frames, folders=[path for path in folders if os.path.lexists(path)])
        states = [msgspec.json.decode(state, type=Session) for state in frames.sessions.values()]
        for session in (*Dataset(self._data).sessions(run_id), *states):
            known = mine.sessions.get(session.session_id)
            if known is None or known.revision <= session.revision:
                mine.sessions[session.session_id] = session
        if not mine.folders and not frames.places:
            raise BadInput(f"there is no run {run_id!r} in {self._data}", "forge sessions names the runs")
        mine.live = self._live(mine)
        return mine

    def _live(self, mine: Belongings) -> str:
        if not self._live_writers:
            return ""
        if mine.frames.writers & self._live_writers:
            return "it is the run of a proxy that is up"
        still = [s.session_id for s in mine.sessions.values() if s.status == SessionStatus.OPEN]
        return f"{len(still)} of its sessions are open, and a proxy is up" if still else ""

    def only_its_media(self, mine: Belongings, kept: Sequence[str]) -> list[Path]:
        """Media of the run that none of ``kept`` refers to, and that were not used a moment ago."""
        names = references(self._data, mine.run_id)
        for run_id in kept:
            names -= references(self._data, run_id) if names else set()
        found = [MediaStore(self._data).path(name) for name in sorted(names)]
        return [path for path in found if path.exists() and _at_rest(path)]

    def delete(self, mine: Belongings, catalog_url: str | None) -> None:
        """Raises ``Unavailable`` for a live run."""
        if mine.live:
            raise Unavailable(f"run {mine.run_id} is live: {mine.live}", "close its sessions, or stop the proxy")
        trash = [_away(path) for path in mine.folders]
        crash.point("run-renamed")
        self._note(mine, behind=not self._forget(mine.run_id, catalog_url))
        for path in mine.media:
            _remove(path)
        crash.point("run-forgotten")
        void(mine.frames)
        for writer in writers(self._data):
            wipe_rest(journal_dir(self._data, writer), live=writer in self._live_writers)
        crash.point("run-voided")
        for path in trash:
            _remove(path)

    def _note(self, mine: Belongings, *, behind: bool) -> None:
        """Into the checkpoint, by which the decoder sees that something is gone."""
        checkpoint = checkpoints.load(self._data)
        checkpoint.live = {s: parts for s, parts in checkpoint.live.items() if s not in mine.sessions}
        folders = {str(path.relative_to(self._data)) for path in mine.folders}
        checkpoint.stale = [part for part in checkpoint.stale if str(Path(part).parent) not in folders]
        checkpoint.catalog_behind = checkpoint.catalog_behind or behind
        checkpoints.save(self._data, checkpoint)

    def _forget(self, run_id: str, url: str | None) -> bool:
        """Whether the catalog knows. If it does not, the decoder makes it anew."""
        catalog = Catalog(self._data, url)
        try:
            catalog.forget(run_id)
        except SQLAlchemyError:
            return False
        finally:
            catalog.close()
        return True

    def sweep(self) -> None:
        """What a deletion that was broken off has renamed away."""
        tables = (folder for pattern in ("calls", "sessions", "samples/set=*") for folder in self._data.glob(pattern))
        for folder in (*tables, *self._beside):
            for path in folder.glob(f"{TRASH}*"):
                _remove(path)


@contextmanager
def deleting(data: Path, *beside: Path) -> Iterator[Deletion]:
    """``beside``: folders below ``data`` that have a folder per run too. Waits for the decoder's step to end."""
    with ExitStack() as stack:
        stack.enter_context(checkpoints.turn(data))
        live: set[int] = set()
        for writer in writers(data):
            try:
                lock = lock_file(journal_dir(data, writer) / "lock", f"data directory {data} is in use")
            except Unavailable:
                live.add(writer)
                continue
            stack.callback(os.close, lock)  # nobody starts meanwhile
        deletion = Deletion(data, beside, live)
        deletion.sweep()
        yield deletion


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir() or file.is_symlink())


def _at_rest(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > MEDIA_REST_S


def _away(path: Path) -> Path:
    """Renamed, so that no reader finds it any more."""
    trash = path.with_name(f"{TRASH}{path.name}")
    _remove(trash)
    os.rename(path, trash)
    return trash


def _remove(path: Path) -> None:
    """Never what a link leads to."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)
