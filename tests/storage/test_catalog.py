"""The catalog: an index that says what the parts say, the same in SQLite and PostgreSQL, and can be made anew."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from forge.proxy.recording.decoder import Decoder
from forge.storage import checkpoint
from forge.storage.catalog import Catalog
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput
from tests.postgres import Postgres, postgres
from tests.storage.frames_kit import Kit, story

Url = Callable[[Path], str | None]
"""The catalog's URL for a data directory."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str | None:
    """None is the file beside the data."""
    if request.param == "sqlite":
        return None
    found: Postgres = request.getfixturevalue("server")
    return found.database()


def decoded(data: Path, url: str | None = None) -> Kit:
    kit = Kit(data)
    story(kit)
    kit.close()
    decode(data, url)
    return kit


def decode(data: Path, url: str | None) -> None:
    decoder = Decoder(data, catalog_url=url)
    decoder.catch_up()
    decoder.close()


def says_what_the_parts_say(data: Path, catalog: Catalog) -> None:
    dataset = Dataset(data)
    (run,) = (run for run in catalog.runs() if run["source"] == catalog.source)
    sizes = [p.stat().st_size for p in (data / "calls").rglob("*.parquet")]
    calls = len(list(dataset.calls()))
    assert (run["run_id"], run["sessions"], run["calls"], run["bytes"]) == ("run-a", 3, calls, sum(sizes))
    latest = {s.session_id: (s.revision, s.status, s.reward, s.open_us) for s in dataset.sessions()}
    rows = [row for row in catalog.sessions("run-a") if row["source"] == catalog.source]
    assert {r["session_id"]: (r["revision"], r["status"], r["reward"], r["open_us"]) for r in rows} == latest
    assert [r["open_us"] for r in rows] == sorted((r["open_us"] for r in rows), reverse=True)
    assert len(catalog.sessions(limit=2)) == 2
    parts = [p for p in catalog.parts("run-a", "samples") if p["source"] == catalog.source]
    assert sum(p["rows"] for p in parts) == len(list(dataset.samples()))


def test_it_says_what_the_parts_say_and_can_be_made_anew(tmp_path: Path, url: str | None) -> None:
    decoded(tmp_path, url)
    assert (tmp_path / "catalog.db").exists() == (url is None)
    catalog = Catalog(tmp_path, url)
    says_what_the_parts_say(tmp_path, catalog)
    catalog.rebuild()
    says_what_the_parts_say(tmp_path, catalog)
    catalog.close()


def test_an_older_catalog_is_made_anew_by_the_decoder(tmp_path: Path, url: str | None) -> None:
    decoded(tmp_path, url)
    catalog = Catalog(tmp_path, url)
    database = create_engine(
        (url or f"sqlite:///{tmp_path / 'catalog.db'}").replace("postgresql:", "postgresql+psycopg:")
    )
    with database.begin() as db:
        db.execute(text("DROP TABLE sessions"))
        db.execute(text("CREATE TABLE sessions (old INTEGER)"))
        db.execute(text("UPDATE forge_catalog SET version = 0"))
    database.dispose()
    kit = Kit(tmp_path)
    kit.open_session("s00000000004")
    kit.cut()
    kit.close()
    decode(tmp_path, url)
    assert catalog.runs()[0]["sessions"] == 4
    catalog.close()


def test_a_database_without_an_encoding_is_as_good(tmp_path: Path, server: Postgres) -> None:
    """What ``initdb`` makes where no locale is set, as in a container; its driver gives bytes for texts there."""
    url = server.database("SQL_ASCII")
    decoded(tmp_path, url)
    catalog = Catalog(tmp_path, url)
    says_what_the_parts_say(tmp_path, catalog)
    catalog.close()


def test_a_deleted_catalog_is_made_anew_by_the_decoder(tmp_path: Path) -> None:
    decoded(tmp_path)
    (tmp_path / "catalog.db").unlink()
    kit = Kit(tmp_path)
    kit.open_session("s00000000004")
    kit.cut()
    kit.close()
    decode(tmp_path, None)
    catalog = Catalog(tmp_path)
    assert catalog.runs()[0]["sessions"] == 4
    catalog.close()


def test_many_data_directories_share_one_and_each_makes_only_its_own_anew(tmp_path: Path, server: Postgres) -> None:
    """Their runs, parts and writers have the same names; they begin at the same moment, on an empty database."""
    url = server.database()
    folders = [tmp_path / name for name in "abc"]
    kits = [Kit(folder) for folder in folders]
    for kit in kits:
        story(kit)
        kit.close()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda folder: decode(folder, url), folders))
    catalogs = [Catalog(folder, url) for folder in folders]
    for folder, catalog in zip(folders, catalogs, strict=True):
        says_what_the_parts_say(folder, catalog)
    assert [run["run_id"] for run in catalogs[0].runs()] == ["run-a"] * 3
    for path in (folders[0] / "calls").rglob("*.parquet"):
        path.unlink()
    catalogs[0].rebuild()
    for folder, catalog in zip(folders[1:], catalogs[1:], strict=True):
        says_what_the_parts_say(folder, catalog)
    assert {run["source"]: run["calls"] for run in catalogs[0].runs()}[catalogs[0].source] == 0
    folders[1].rename(tmp_path / "moved")
    moved = Catalog(tmp_path / "moved", url)
    says_what_the_parts_say(tmp_path / "moved", moved)
    for catalog in (*catalogs, moved):
        catalog.close()


def test_down_at_the_start_decoding_goes_on_and_the_catalog_catches_up(tmp_path: Path, server: Postgres) -> None:
    """Also where no call comes after the database has come back."""
    url = server.database()
    server.stop()
    decoded(tmp_path, url)
    assert len(list(Dataset(tmp_path).calls())) == 13
    assert checkpoint.load(tmp_path).catalog_behind
    catalog = Catalog(tmp_path, url)
    with pytest.raises(OperationalError):
        catalog.runs()
    server.start()
    decoder = Decoder(tmp_path, catalog_url=url)
    decoder.mend_catalog()
    says_what_the_parts_say(tmp_path, catalog)
    assert not checkpoint.load(tmp_path).catalog_behind
    decoder.close()
    catalog.close()


def test_down_in_the_middle_decoding_goes_on_and_the_catalog_catches_up(tmp_path: Path, server: Postgres) -> None:
    url = server.database()
    kit = Kit(tmp_path)
    kit.open_session("s00000000001")
    kit.cut()
    decoder = Decoder(tmp_path, catalog_url=url)
    decoder.catch_up()
    server.stop()
    kit.open_session("s00000000002")
    kit.cut()
    decoder.catch_up()
    assert len(Dataset(tmp_path).sessions()) == 2
    server.start()
    catalog = Catalog(tmp_path, url)
    assert len(catalog.sessions()) == 1
    kit.close()
    decoder.close()
    again = Decoder(tmp_path, catalog_url=url)  # its wait of half a minute begins anew
    again.mend_catalog()
    assert len(catalog.sessions()) == 2
    again.close()
    catalog.close()


def test_a_bad_url_is_refused_without_its_password(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        Catalog(tmp_path, "mongodb://user:hunter2@host/name")
    assert "hunter2" not in caught.value.message
    assert "//...@host" in caught.value.message


def test_a_postgresql_that_is_down_does_not_stop_decoding(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/postgres"
        decoded(tmp_path, url)
    assert len(list(Dataset(tmp_path).calls())) == 13


@pytest.mark.process
def test_one_command_makes_it_anew_and_lists_what_is_there(tmp_path: Path, url: str | None) -> None:
    decoded(tmp_path)
    env = {**os.environ, **({"FORGE_CATALOG": url} if url is not None else {})}

    def forge(*line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "forge", "catalog", *line, "--data", str(tmp_path)],
            capture_output=True, text=True, env=env, timeout=60, check=False,
        )  # fmt: skip

    done = forge("rebuild")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 run, 3 sessions, 13 calls"), done.stderr
    done = forge("runs")
    assert done.returncode == 0, done.stderr
    assert "run-a" in done.stdout
    down = forge("rebuild", "--catalog", "postgresql://postgres:hunter2@127.0.0.1:1/none")
    assert down.returncode == 4
    assert "hunter2" not in down.stderr
    assert "next:" in down.stderr
