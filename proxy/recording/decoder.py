"""The decoder: follows every journal of a data directory and turns it into the dataset.

One decoder per data directory, by lease: those of other proxies that share it stand by until it ends, or is stopped for
so long that one takes over. It may lag or die at any moment: the journal is the queue, an interval is written the same
way twice, and the checkpoint moves only after the parts are there. Decoded segments beyond ``keep`` bytes are given
back to their writer here and nowhere else. Never on a call's path.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from forge.proxy.recording.assembly import Assembly
from forge.proxy.recording.memory import CHAIN_BYTES
from forge.proxy.recording.projection import Projector, Written
from forge.proxy.recording.rebuild import plan, remove_leftovers
from forge.storage import checkpoint as checkpoints
from forge.storage import crash
from forge.storage.catalog import Catalog
from forge.storage.dataset import note_recipe
from forge.storage.errors import BadInput, Unavailable
from forge.storage.files import fsync_dir, take_from
from forge.storage.journal import (
    Damage,
    Entry,
    JournalReader,
    JournalWriter,
    Position,
    journal_dir,
    segment_path,
    segments,
    writers,
)
from forge.storage.journal_spares import give_back
from forge.storage.lease import Lease
from forge.storage.recipe import DEFAULT

log = logging.getLogger(__name__)

KEEP_BYTES: Final = 256 << 20
"""Decoded segments that stay, so that the dataset can be made anew from them."""
CATALOG_RETRY_SECONDS: Final = 30.0


def lease_path(data: Path) -> Path:
    return data / "journal" / "decoder.lock"


@dataclass(slots=True)
class _Follower:
    """One writer's journal as the decoder sees it."""

    writer: int
    reader: JournalReader
    assembly: Assembly


class Decoder:
    """All decoding of one data directory. Holds its lock from the first moment to ``close``."""

    def __init__(
        self,
        data: Path,
        *,
        keep_bytes: int = KEEP_BYTES,
        catalog_url: str | None = None,
        chain_bytes: int = CHAIN_BYTES,
        take_over: bool = False,
    ) -> None:
        """``take_over``: from a decoder that ``Watch`` has found silent."""
        self.data = data
        self._chain_bytes = chain_bytes
        self._keep = keep_bytes
        self._followers: dict[int, _Follower] = {}
        (data / "journal").mkdir(parents=True, exist_ok=True)
        lease = lease_path(data)
        self._lease = (
            Lease.take_over(lease) if take_over else Lease.take(lease, f"data directory {data} is being decoded")
        )
        if take_over:
            take_from(checkpoints.turn_path(data), checkpoints.DECODER)
        try:
            self._catalog = Catalog(data, catalog_url)
            self._catalog_retry = 0.0
            self._begin()
            if not self._checkpoint.catalog_behind:
                self._catalog_told(self._catalog.begin)
        except BaseException:
            self._lease.release()
            raise

    def close(self) -> None:
        for follower in self._followers.values():
            follower.reader.close()
        self._catalog.close()
        self._lease.release()

    def step(self) -> int:
        """Decodes what is there of each journal, a bounded piece of it; gives how many frames that were.

        Raises ``OSError`` when the disk refuses; everything in memory is then as it was after the last checkpoint.
        Raises ``Fenced`` when another decoder has taken over.
        """
        self._lease.sign()
        try:
            with checkpoints.turn(self.data, checkpoints.DECODER):
                if checkpoints.stamp(self.data) != self._stamp:
                    self._begin()  # a run was deleted meanwhile
                return self._step()
        except OSError:
            self._begin()
            raise

    def catch_up(self) -> None:
        """Decodes up to the last cut that is there."""
        while self.step():
            pass
        self.drop_stale()

    def seal(self) -> bool:
        """Bounds what dead writers left after their last cut, and bytes that are no frame: what follows them can then
        be read. False if there is nothing, or the writers live."""
        sealed = False
        for follower in list(self._followers.values()):
            run_id = follower.assembly.pending_run
            if run_id is None and not follower.reader.rest:
                continue
            try:
                JournalWriter.open(self.data, follower.writer, run_id=run_id or "").close()
            except Unavailable as error:
                log.info("not sealed: %s", error.message)
                continue
            sealed = True
        return sealed

    def start_over(self) -> None:
        """Everything again from the journal's first frame; parts are replaced as they are made. Raises
        ``Unavailable`` if the journal does not hold what they were made from."""
        with checkpoints.turn(self.data, checkpoints.DECODER):
            checkpoints.save(self.data, plan(self.data))
            self._begin()

    @property
    def damage(self) -> list[Damage]:
        """Of the journals as far as they were read."""
        return [each for follower in self._followers.values() for each in follower.reader.damage]

    def _begin(self) -> None:
        """Everything from the checkpoint, as after a start."""
        for follower in self._followers.values():
            follower.reader.close()
        self._followers.clear()
        self._stamp = checkpoints.stamp(self.data)
        self._checkpoint = checkpoints.load(self.data)
        self._projector = Projector(self.data, self._checkpoint, chain_bytes=self._chain_bytes)
        remove_leftovers(self.data)
        try:
            note_recipe(self.data, DEFAULT)
        except BadInput as error:
            log.warning("samples of several recipes in one set: %s; forge decode --rebuild makes them alike", error)

    def _follower(self, writer: int) -> _Follower:
        found = self._followers.get(writer)
        if found is None:
            mark = self._checkpoint.mark(writer)
            reader = JournalReader(journal_dir(self.data, writer), Position(*mark.oldest))
            until = Position(*mark.position)
            assembly = Assembly(
                writer, boot=mark.boot, replay_until=until, decode=self._projector.decode, read=reader.blobs
            )
            found = _Follower(writer, reader, assembly)
            self._followers[writer] = found
        return found

    def _step(self) -> int:
        """Parts appear one by one; their names, the catalog and the checkpoint are flushed once for all intervals."""
        frames, written = 0, Written()
        moved: list[_Follower] = []
        for writer in writers(self.data):
            follower = self._follower(writer)
            entries = follower.reader.read()
            frames += len(entries)
            if sum(self._project(entry, follower, written) for entry in entries):
                moved.append(follower)
        if moved:
            self._commit(moved, written)
        return frames

    def _project(self, entry: Entry, follower: _Follower, written: Written) -> bool:
        """Whether an interval ended with the entry; its parts are there then."""
        interval = follower.assembly.feed(entry)
        if interval is None:
            return False
        if interval.calls or interval.sessions:
            crash.point("interval")
            self._lease.sign()
            self._projector.write(interval, written)
        mark = self._checkpoint.mark(interval.writer)
        mark.position = (interval.last.segment, interval.last.offset)
        oldest = follower.assembly.oldest or interval.last
        mark.oldest = (oldest.segment, oldest.offset)
        mark.boot = follower.assembly.boot
        mark.policies |= {p.replica: (p.policy_version, p.policy_lineage, p.weight_digest) for p in interval.policies}
        return True

    def _commit(self, moved: Iterable[_Follower], written: Written) -> None:
        """Parts before the catalog, that before the checkpoint, and only what is in it is given back."""
        for folder in {path.parent for path in written.parts}:
            fsync_dir(folder)
        made = {str(path.relative_to(self.data)) for path in written.parts}
        self._checkpoint.stale = [part for part in self._checkpoint.stale if part not in made]
        self._index(written)
        self._lease.sign()
        self._save()
        for follower in moved:
            self._drop_segments(follower)

    def _save(self) -> None:
        checkpoints.save(self.data, self._checkpoint)
        self._stamp = checkpoints.stamp(self.data)

    def _index(self, written: Written, gone: Iterable[Path] = ()) -> None:
        """The catalog is never worth stopping for: it says once that it is down, and catches up later.

        Comes before the checkpoint is saved, which remembers whether it is behind: so no crash makes it forget one.
        """
        behind = self._checkpoint.catalog_behind
        if behind and time.monotonic() < self._catalog_retry:
            return
        if behind:
            self._catalog_told(self._catalog.rebuild)
        elif written.parts or gone:
            self._catalog_told(partial(self._catalog.note, written.parts, written.sessions, gone))

    def _catalog_told(self, change: Callable[[], None]) -> None:
        behind = self._checkpoint.catalog_behind
        try:
            change()
            self._checkpoint.catalog_behind = False
        except SQLAlchemyError as error:
            if not behind:
                log.error("catalog not updated, decoding goes on: %s", str(error).splitlines()[0])
            self._fell_behind()
        except Exception:  # a driver has errors of its own, and none of them ends decoding
            log.exception("catalog not updated, decoding goes on")
            self._fell_behind()

    def _fell_behind(self) -> None:
        self._checkpoint.catalog_behind = True
        self._catalog_retry = time.monotonic() + CATALOG_RETRY_SECONDS

    def mend_catalog(self) -> None:
        """Between intervals too: a database that comes back is not left behind until the next call."""
        if self._checkpoint.catalog_behind and time.monotonic() >= self._catalog_retry:
            self._index(Written())
            checkpoints.save(self.data, self._checkpoint)

    def _drop_segments(self, follower: _Follower) -> None:
        """Decoded segments beyond what is kept go back to their writer, oldest first. The last one never goes."""
        mark = self._checkpoint.mark(follower.writer)
        directory = journal_dir(self.data, follower.writer)
        needed = min(mark.position[0], mark.oldest[0])
        done = [segment for segment in segments(directory) if segment < needed]
        sizes = [segment_path(directory, segment).stat().st_size for segment in done]
        excess = sum(sizes) - self._keep
        for segment, size in zip(done, sizes, strict=True):
            if excess <= 0:
                return
            give_back(directory, segment)
            crash.point("segment-deleted")
            excess -= size

    def drop_stale(self) -> None:
        """Parts that a rebuild, now caught up, has not made again."""
        if not self._checkpoint.stale:
            return
        with checkpoints.turn(self.data, checkpoints.DECODER):
            gone = [self.data / part for part in self._checkpoint.stale]
            for path in gone:
                path.unlink(missing_ok=True)
            self._checkpoint.stale = []
            self._index(Written(), gone)
            self._save()
