"""The catalog: an SQL index of runs, sessions and parts, so that lists need not open every file.

An index, never the truth: it can be thrown away and made again from the parts (``rebuild``), so a new schema needs
no migration. SQLite beside the data by default, PostgreSQL by URL, where many data directories (``source``) may share
one. The decoder keeps it; when the database is down recording and decoding go on, and the catalog catches up.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    bindparam,
    case,
    cast,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    select,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from forge.storage.dataset import Dataset
from forge.storage.dataset_calls import UNREADABLE
from forge.storage.errors import BadInput
from forge.storage.files import write_whole
from forge.storage.parts import count_rows, parts_in, run_of, table_dir
from forge.storage.recipe import DEFAULT
from forge.storage.records import Session

VERSION: Final = 2
"""Another one in the database: everything is dropped and made again."""
CONNECT_SECONDS: Final = 5
SOURCE_FILE: Final = "catalog.source"
"""In a data directory: its name in catalogs, given once, so that it stays what it is when the directory is moved."""
BULK_ROWS: Final = 1000
LOCK: Final = 0x464F524745
"""PostgreSQL's advisory lock for making the tables: several decoders may find none at the same moment."""

metadata: Final = MetaData()
VERSIONS: Final = Table("forge_catalog", metadata, Column("version", Integer, primary_key=True))
SOURCES: Final = Table("sources", metadata, Column("source", String(512), primary_key=True))
"""The data directories that are in it, each whole."""
PARTS: Final = Table(
    "parts",
    metadata,
    Column("source", String(512), primary_key=True),
    Column("path", String(512), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("run_id", String(255), nullable=False, index=True),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
SESSIONS: Final = Table(
    "sessions",
    metadata,
    Column("source", String(512), primary_key=True),
    Column("session_id", String(64), primary_key=True),
    Column("run_id", String(255), nullable=False),
    Column("revision", Integer, nullable=False),
    Column("task_id", String(255)),
    Column("group_id", String(255)),
    Column("harness", String(64)),
    Column("purpose", String(16), nullable=False),
    Column("status", String(32), nullable=False),
    Column("reward", Double),
    Column("reward_status", String(16), nullable=False),
    Column("selection", String(16)),
    Column("open_us", BigInteger, nullable=False),
    Column("close_us", BigInteger),
    Index("sessions_of_run", "run_id", "open_us"),
)


class Catalog:
    """The place of one data directory in a database, and all that is in that."""

    def __init__(self, data: Path, url: str | None = None) -> None:
        self._data = data
        self._engine = engine_of(url or f"sqlite:///{data / 'catalog.db'}")
        self._begun = False

    @cached_property
    def source(self) -> str:
        """The data directory's name: the host and path where it was first indexed."""
        path = self._data / SOURCE_FILE
        if not path.exists():
            name = f"{socket.gethostname()}:{self._data.resolve()}"
            write_whole(path, lambda unfinished: unfinished.write_text(name))
        return path.read_text()

    def close(self) -> None:
        self._engine.dispose()

    def begin(self) -> None:
        """Has tables, and the data directory's place in them; makes what is missing. Once is enough: what goes away
        later is an error of the database, which a ``rebuild`` mends."""
        if self._begun:
            return
        with self._engine.begin() as db:
            _prepare(db)
            if not db.scalar(select(func.count()).where(SOURCES.c.source == self.source)):
                self._fill(db)
        self._begun = True

    def note(self, parts: Mapping[Path, int], sessions: Iterable[Session], gone: Iterable[Path] = ()) -> None:
        """Takes in what the decoder has just written: parts with their rows. Doing it twice changes nothing."""
        self.begin()
        with self._engine.begin() as db:
            for path in gone:
                db.execute(delete(PARTS).where(PARTS.c.source == self.source, PARTS.c.path == self._name(path)))
            _put(db, PARTS, [self._part(path, rows) for path, rows in parts.items()])
            latest = {each.session_id: each for each in sorted(sessions, key=lambda each: each.revision)}
            known = self._revisions(db, list(latest))
            fresh = [s for s in latest.values() if known.get(s.session_id, 0) <= s.revision]
            _put(db, SESSIONS, [self._session(session) for session in fresh])

    def forget(self, run_id: str) -> None:
        """A run that was deleted."""
        with self._engine.begin() as db:
            _prepare(db)
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("PRAGMA secure_delete = ON")
            for table in (PARTS, SESSIONS):
                db.execute(delete(table).where(table.c.source == self.source, table.c.run_id == run_id))

    def rebuild(self) -> None:
        """Makes the data directory's place anew from its parts; those of others stay."""
        with self._engine.begin() as db:
            _prepare(db)
            self._fill(db)

    def _fill(self, db: Connection) -> None:
        """One transaction: whoever reads meanwhile sees what was there before."""
        paths = [path for kind in ("calls", "sessions") for path in parts_in(table_dir(self._data, kind))]
        paths += parts_in(table_dir(self._data, "samples", DEFAULT.name))
        parts = [self._part(path, rows) for path in paths if (rows := _count(path)) is not None]
        sessions = [self._session(each) for each in Dataset(self._data).sessions()]
        for table, made in ((PARTS, parts), (SESSIONS, sessions), (SOURCES, [{"source": self.source}])):
            db.execute(delete(table).where(table.c.source == self.source))
            for first in range(0, len(made), BULK_ROWS):
                db.execute(insert(table), made[first : first + BULK_ROWS])

    def runs(self) -> list[dict[str, Any]]:
        """Runs of each source, the oldest first, with how many calls (rows) and sessions they have."""
        calls = (
            select(
                PARTS.c.source,
                PARTS.c.run_id,
                _sum(PARTS.c.rows).label("calls"),
                _sum(PARTS.c.bytes).label("bytes"),
            )
            .group_by(PARTS.c.source, PARTS.c.run_id)
            .subquery()
        )
        sessions = (
            select(
                SESSIONS.c.source,
                SESSIONS.c.run_id,
                func.count().label("sessions"),
                func.min(SESSIONS.c.open_us).label("first_us"),
            )
            .group_by(SESSIONS.c.source, SESSIONS.c.run_id)
            .subquery()
        )
        query = (
            select(
                calls.c.source,
                calls.c.run_id,
                func.coalesce(sessions.c.sessions, 0).label("sessions"),
                calls.c.calls,
                calls.c.bytes,
                sessions.c.first_us,
            )
            .outerjoin(sessions, (sessions.c.run_id == calls.c.run_id) & (sessions.c.source == calls.c.source))
            .order_by(sessions.c.first_us, calls.c.source, calls.c.run_id)
        )
        return self._rows(query)

    def sessions(self, run_id: str | None = None, *, limit: int = 1000) -> list[dict[str, Any]]:
        """The latest revision of each session, the newest first."""
        query = select(SESSIONS).order_by(SESSIONS.c.open_us.desc(), SESSIONS.c.session_id).limit(limit)
        return self._rows(query if run_id is None else query.where(SESSIONS.c.run_id == run_id))

    def parts(self, run_id: str, kind: str) -> list[dict[str, Any]]:
        return self._rows(select(PARTS).where(PARTS.c.run_id == run_id, PARTS.c.kind == kind).order_by(PARTS.c.path))

    def _rows(self, query: Any) -> list[dict[str, Any]]:
        with self._engine.connect() as db:
            return [dict(row) for row in db.execute(query).mappings()]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._data))

    def _part(self, path: Path, rows: int) -> dict[str, Any]:
        kind = path.relative_to(self._data).parts[0]
        values = {"kind": kind, "run_id": run_of(path), "rows": rows, "bytes": path.stat().st_size}
        return {"source": self.source, "path": self._name(path), **values}

    def _session(self, session: Session) -> dict[str, Any]:
        return {"source": self.source} | {
            c.name: getattr(session, c.name) for c in SESSIONS.columns if c.name != "source"
        }

    def _revisions(self, db: Connection, session_ids: list[str]) -> dict[str, int]:
        """Those of the sessions that are known."""
        found: dict[str, int] = {}
        for first in range(0, len(session_ids), BULK_ROWS):
            some = SESSIONS.c.session_id.in_(session_ids[first : first + BULK_ROWS])
            rows = select(SESSIONS.c.session_id, SESSIONS.c.revision).where(SESSIONS.c.source == self.source, some)
            found |= {row.session_id: row.revision for row in db.execute(rows)}
        return found


def _count(path: Path) -> int | None:
    """Rows of a part; None if it cannot be read, which the dataset's readers report."""
    try:
        return count_rows(path)
    except UNREADABLE:
        return None


def _prepare(db: Connection) -> None:
    """Makes the tables where there are none, or those of another version."""
    if db.dialect.name == "postgresql":
        db.execute(select(func.pg_advisory_xact_lock(LOCK)))
    if not inspect(db).has_table(VERSIONS.name) or db.scalar(select(func.max(VERSIONS.c.version))) != VERSION:
        metadata.drop_all(db)
        metadata.create_all(db)
        db.execute(insert(VERSIONS).values(version=VERSION))


def _sum(column: Column[int]) -> ColumnElement[int]:
    """Of calls' parts; as a whole number, which PostgreSQL's sum is not."""
    return cast(func.sum(case((PARTS.c.kind == "calls", column), else_=0)), BigInteger)


def _put(db: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """In the place of what was there under the same key; only its own decoder writes of a source, so nobody comes
    between."""
    keys = [column.name for column in table.primary_key]
    where = [table.c[name] == bindparam(f"key_{name}") for name in keys]
    for first in range(0, len(rows), BULK_ROWS):
        some = rows[first : first + BULK_ROWS]
        db.execute(delete(table).where(*where), [{f"key_{name}": row[name] for name in keys} for row in some])
        db.execute(insert(table), some)


def engine_of(url: str) -> Engine:
    """Connects to nothing yet. Raises ``BadInput`` on a URL that cannot be one of a catalog."""
    shown = re.sub(r"//[^/@]*@", "//...@", url)
    try:
        if url.startswith(("postgres://", "postgresql://")):
            url = "postgresql+psycopg://" + url.split("://", 1)[1]
        options: dict[str, Any] = {"timeout": CONNECT_SECONDS}
        if not url.startswith("sqlite"):  # of a database without an encoding, psycopg would give bytes for texts
            options = {"connect_timeout": CONNECT_SECONDS, "client_encoding": "utf8"}
        return create_engine(url, connect_args=options, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise BadInput(f"catalog URL {shown} is not usable", "use sqlite:///FILE or postgresql://HOST/NAME") from error
    except ModuleNotFoundError as error:
        raise BadInput(
            f"catalog URL {shown} needs the Python package {error.name}", "pip install 'rollout-forge[postgres]'"
        ) from error
