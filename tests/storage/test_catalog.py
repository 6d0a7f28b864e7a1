"""The catalog: an index that says what the parts say, in SQLite and PostgreSQL, and can be made anew."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from forge.proxy.recording.decoder import Decoder
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from tests.storage.frames_kit import Kit, story

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


def decoded(data: Path, url: str | None = None) -> Kit:
    kit = Kit(data)
    story(kit)
    kit.close()
    decoder = Decoder(data, catalog_url=url)
    decoder.catch_up()
    decoder.close()
    return kit


def says_what_the_parts_say(data: Path, catalog: Catalog) -> None:
    dataset = Dataset(data)
    (run,) = catalog.runs()
    sizes = [p.stat().st_size for p in (data / "calls").rglob("*.parquet")]
    calls = len(list(dataset.calls()))
    assert (run["run_id"], run["sessions"], run["calls"], run["bytes"]) == ("run-a", 3, calls, sum(sizes))
    latest = {s.session_id: (s.revision, s.status, s.reward, s.open_us) for s in dataset.sessions()}
    rows = catalog.sessions("run-a")
    assert {r["session_id"]: (r["revision"], r["status"], r["reward"], r["open_us"]) for r in rows} == latest
    assert [r["open_us"] for r in rows] == sorted((r["open_us"] for r in rows), reverse=True)
    assert len(catalog.sessions(limit=2)) == 2
    assert sum(p["rows"] for p in catalog.parts("run-a", "samples")) == len(list(dataset.samples()))


def test_it_says_what_the_parts_say_and_can_be_made_anew(tmp_path: Path) -> None:
    decoded(tmp_path)
    catalog = Catalog(tmp_path)
    says_what_the_parts_say(tmp_path, catalog)
    catalog.rebuild()
    says_what_the_parts_say(tmp_path, catalog)
    catalog.close()


def test_a_deleted_or_older_catalog_is_made_anew_by_the_decoder(tmp_path: Path) -> None:
    decoded(tmp_path)
    database = create_engine(f"sqlite:///{tmp_path / 'catalog.db'}")
    with database.begin() as db:
        db.execute(text("DROP TABLE sessions"))
        db.execute(text("CREATE TABLE sessions (old INTEGER)"))
        db.execute(text("UPDATE forge_catalog SET version = 0"))
    database.dispose()
    for sessions in (4, 5):
        kit = Kit(tmp_path)
        kit.open_session(f"s0000000000{sessions}")
        kit.cut()
        kit.close()
        decoder = Decoder(tmp_path)
        decoder.catch_up()
        decoder.close()
        catalog = Catalog(tmp_path)
        assert catalog.runs()[0]["sessions"] == sessions
        catalog.close()
        (tmp_path / "catalog.db").unlink()


def test_a_bad_url_is_refused_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Catalog(tmp_path, "mongodb://user:hunter2@host/name")
    assert "hunter2" not in caught.value.message
    assert "//...@host" in caught.value.message


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a throwaway PostgreSQL cluster."""
    if not BINARIES:
        pytest.skip("no PostgreSQL server is installed under /usr/lib/postgresql")
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    binaries = BINARIES[-1].parent
    with tempfile.TemporaryDirectory(prefix="forge-pg-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        as_user: list[str] = []
        if os.geteuid() == 0:
            try:
                account = pwd.getpwnam("postgres")
            except KeyError:
                pytest.skip("PostgreSQL does not run as root and there is no user postgres")
            os.chown(folder, account.pw_uid, account.pw_gid)
            as_user = ["runuser", "-u", "postgres", "--"]
        cluster = f"{folder}/pg"
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder} "
            "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        )

        def tool(*line: str) -> None:
            subprocess.run([*as_user, *line], check=True, capture_output=True, timeout=120, cwd=folder)

        tool(str(binaries / "initdb"), "-D", cluster, "-U", "postgres", "-A", "trust", "--no-sync")
        tool(str(binaries / "pg_ctl"), "-D", cluster, "-w", "-l", f"{folder}/log", "-o", options, "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            tool(str(binaries / "pg_ctl"), "-D", cluster, "-m", "immediate", "stop")


def test_postgresql_is_kept_by_the_decoder(tmp_path: Path, postgres: str) -> None:
    decoded(tmp_path, postgres)
    assert not (tmp_path / "catalog.db").exists()
    catalog = Catalog(tmp_path, postgres)
    says_what_the_parts_say(tmp_path, catalog)
    catalog.rebuild()
    says_what_the_parts_say(tmp_path, catalog)
    catalog.close()


def test_a_postgresql_that_is_down_does_not_stop_decoding(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/postgres"
        decoded(tmp_path, url)
        catalog = Catalog(tmp_path, url)
        with pytest.raises(OperationalError):
            catalog.runs()
        catalog.close()
    assert len(list(Dataset(tmp_path).calls())) == 13
