"""What each harness itself wrote down of a session, read back: trimmed records of real runs, and damaged ones."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import Heard

GOLDEN = Path(__file__).parent / "golden"
NOT_COUNTED = Heard(None, None)


def kept(name: str, folder: Path) -> Path:
    """The transcript folder of a session, as a run keeps it."""
    golden = GOLDEN / f"{name}-{find(name).version}"
    shutil.copytree(golden, folder, dirs_exist_ok=True)
    for dump in folder.glob("*.sql"):
        (folder / f".{name}").mkdir()
        with closing(sqlite3.connect(folder / f".{name}" / f"{dump.stem}.db")) as database:
            database.executescript(dump.read_text())
    return folder


@pytest.mark.parametrize(
    ("name", "heard"),
    [
        ("hermes", [NOT_COUNTED, NOT_COUNTED]),
        ("mini-swe-agent", [Heard(910, 37), Heard(978, 34)]),
        ("qwen-code", [Heard(18374, 37), Heard(18471, 3)]),
    ],
)
def test_a_record_tells_of_every_call(name: str, heard: list[Heard], tmp_path: Path) -> None:
    folder = kept(name, tmp_path)
    assert find(name).transcript(folder) == heard
    records = [path for path in folder.rglob("*") if path.is_file()]
    for glob in find(name).transcripts:
        assert not Path(glob).is_absolute()
    assert find(name).transcript(folder) == heard, "reading leaves nothing behind"
    assert [path for path in folder.rglob("*") if path.is_file()] == records


@pytest.mark.parametrize("name", ["hermes", "mini-swe-agent", "qwen-code"])
def test_no_record_is_none(name: str, tmp_path: Path) -> None:
    assert find(name).transcript(tmp_path) is None


@pytest.mark.parametrize("name", ["hermes", "mini-swe-agent", "qwen-code"])
@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"messages": [1, {"extra": {"response": 3}}]}', b"\xff\x00"])
def test_a_damaged_record_breaks_nothing(name: str, damage: bytes, tmp_path: Path) -> None:
    for path in kept(name, tmp_path).rglob("*"):
        if path.is_file():
            path.write_bytes(damage)
    assert not find(name).transcript(tmp_path)


def test_one_call_of_hermes_has_its_tokens(tmp_path: Path) -> None:
    folder = kept("hermes", tmp_path)
    with closing(sqlite3.connect(folder / ".hermes/state.db")) as database, database:
        database.execute("UPDATE session_model_usage SET api_call_count = 1")
    assert find("hermes").transcript(folder) == [Heard(26375, 40)]


def test_hermes_that_was_killed_left_its_counts_in_the_log(tmp_path: Path) -> None:
    """The newest rows are then in the log beside the database."""
    live, folder = kept("hermes", tmp_path / "live"), tmp_path / "kept"
    with closing(sqlite3.connect(live / ".hermes/state.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        with database:
            database.execute("UPDATE session_model_usage SET api_call_count = 5")
        shutil.copytree(live, folder)
    (folder / ".hermes/state.db-shm").unlink()
    assert find("hermes").transcript(folder) == [NOT_COUNTED] * 5
