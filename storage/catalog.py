"""The catalog: an SQL index of runs, sessions and parts, so that lists need not open every file.

An index, never the truth: it can be thrown away and made again from the parts (``rebuild``), so a new schema needs
no migration. SQLite beside the data by default, PostgreSQL by URL. The decoder keeps it; when the database is down
recording and decoding go on, and the catalog catches up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from forge.storage.dataset import Dataset
from forge.storage.dataset_calls import UNREADABLE
from forge.storage.errors import BadInput
from forge.storage.parts import count_rows, parts_in, run_of, table_dir
from forge.storage.recipe import DEFAULT
from forge.storage.records import Session

VERSION: Final = 1
"""Another one in the database: everything is dropped and made again."""
CONNECT_SECONDS: Final = 5

metadata: Final = MetaData()
VERSIONS: Final = Table("forge_catalog", metadata, Column("version", Integer, primary_key=True))
PARTS: Final = Table(
    "parts",
    metadata,
    Column("path", String(512), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("run_id", String(255), nullable=False, index=True),
    Column("rows", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
SESSIONS: Final = Table(
    "sessions",
    metadata,
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
    Column("open_us", BigInteger, nullable=False),
    Column("close_us", BigInteger),
    Index("sessions_of_run", "run_id", "open_us"),
)


class Catalog:
    """One database that indexes one data directory."""

    def __init__(self, data: Path, url: str | None = None) -> None:
        self._data = data
        self._engine = _engine(url or f"sqlite:///{data / 'catalog.db'}")

    def close(self) -> None:
        self._engine.dispose()

    def prepare(self) -> bool:
        """Makes the tables. False if they were there already, of this version."""
        with self._engine.begin() as db:
            if inspect(db).has_table(VERSIONS.name) and db.scalar(select(func.max(VERSIONS.c.version))) == VERSION:
                return False
            metadata.drop_all(db)
            metadata.create_all(db)
            db.execute(insert(VERSIONS).values(version=VERSION))
        return True

    def note(self, parts: Mapping[Path, int], sessions: Iterable[Session], gone: Iterable[Path] = ()) -> None:
        """Takes in what the decoder has just written: parts with their rows. Doing it twice changes nothing."""
        if self.prepare():
            self._fill()
            return
        with self._engine.begin() as db:
            for path in gone:
                db.execute(delete(PARTS).where(PARTS.c.path == self._name(path)))
            for path, rows in parts.items():
                self._note_part(db, path, rows)
            for session in sessions:
                _note_session(db, session)

    def forget(self, run_id: str) -> None:
        """A run that was deleted."""
        if self.prepare():
            self._fill()
            return
        with self._engine.begin() as db:
            if db.dialect.name == "sqlite":
                db.exec_driver_sql("PRAGMA secure_delete = ON")
            for table in (PARTS, SESSIONS):
                db.execute(delete(table).where(table.c.run_id == run_id))

    def rebuild(self) -> None:
        """Makes the catalog anew from the parts."""
        with self._engine.begin() as db:
            metadata.drop_all(db)
        self.prepare()
        self._fill()

    def _fill(self) -> None:
        paths = [path for kind in ("calls", "sessions") for path in parts_in(table_dir(self._data, kind))]
        paths += parts_in(table_dir(self._data, "samples", DEFAULT.name))
        counted = {path: rows for path in paths if (rows := _count(path)) is not None}
        self.note(counted, Dataset(self._data).sessions())

    def runs(self) -> list[dict[str, Any]]:
        """Runs by name, with how many calls (rows) and sessions they have."""
        calls = (
            select(PARTS.c.run_id, func.sum(PARTS.c.rows).label("calls"), func.sum(PARTS.c.bytes).label("bytes"))
            .where(PARTS.c.kind == "calls")
            .group_by(PARTS.c.run_id)
            .subquery()
        )
        sessions = (
            select(SESSIONS.c.run_id, func.count().label("sessions"), func.min(SESSIONS.c.open_us).label("first_us"))
            .group_by(SESSIONS.c.run_id)
            .subquery()
        )
        names = select(PARTS.c.run_id).union(select(SESSIONS.c.run_id)).subquery()
        query = (
            select(
                names.c.run_id,
                func.coalesce(sessions.c.sessions, 0).label("sessions"),
                func.coalesce(calls.c.calls, 0).label("calls"),
                func.coalesce(calls.c.bytes, 0).label("bytes"),
                sessions.c.first_us,
            )
            .outerjoin(calls, calls.c.run_id == names.c.run_id)
            .outerjoin(sessions, sessions.c.run_id == names.c.run_id)
            .order_by(sessions.c.first_us, names.c.run_id)
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

    def _note_part(self, db: Connection, path: Path, rows: int) -> None:
        kind = path.relative_to(self._data).parts[0]
        values = {"kind": kind, "run_id": run_of(path), "rows": rows, "bytes": path.stat().st_size}
        _put(db, PARTS, {"path": self._name(path)}, values)


def _count(path: Path) -> int | None:
    """Rows of a part; None if it cannot be read, which the dataset's readers report."""
    try:
        return count_rows(path)
    except UNREADABLE:
        return None


def _note_session(db: Connection, session: Session) -> None:
    known = db.scalar(select(SESSIONS.c.revision).where(SESSIONS.c.session_id == session.session_id))
    if known is not None and known > session.revision:
        return
    values = {c.name: getattr(session, c.name) for c in SESSIONS.columns if c.name != "session_id"}
    _put(db, SESSIONS, {"session_id": session.session_id}, values)


def _put(db: Connection, table: Table, key: dict[str, Any], values: dict[str, Any]) -> None:
    """Insert or update; only the decoder writes, so nobody comes between."""
    where = [table.c[name] == value for name, value in key.items()]
    if db.execute(update(table).where(*where).values(values)).rowcount == 0:
        db.execute(insert(table).values({**key, **values}))


def _engine(url: str) -> Engine:
    shown = re.sub(r"//[^/@]*@", "//...@", url)
    try:
        if url.startswith(("postgres://", "postgresql://")):
            url = "postgresql+psycopg://" + url.split("://", 1)[1]
        timeout = {"timeout": CONNECT_SECONDS} if url.startswith("sqlite") else {"connect_timeout": CONNECT_SECONDS}
        return create_engine(url, connect_args=timeout, pool_pre_ping=True)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise BadInput(f"catalog URL {shown} is not usable", "use sqlite:///FILE or postgresql://HOST/NAME") from error
    except ModuleNotFoundError as error:
        raise BadInput(
            f"catalog URL {shown} needs the Python package {error.name}", "pip install 'rollout-forge[postgres]'"
        ) from error
