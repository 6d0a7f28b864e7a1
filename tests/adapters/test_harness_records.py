"""What the harnesses themselves write down of their calls: trimmed records of real sessions, and damaged ones.

Each golden record tells of two calls: 1000 tokens of prompt (900 of them cached) and 20 sampled, then 1030 and 7.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import Heard
from forge.adapters.harnesses.sqlite import rows

GOLDEN = Path(__file__).parent / "golden"
RECORDS = {
    "claude-code": ".claude/projects/-workspace/35726d1d.jsonl",
    "codex": ".codex/sessions/2026/11/30/rollout-2026-11-30T08-19-04.jsonl",
    "gemini-cli": ".gemini/tmp/workspace/chats/session-2026-11-30T08-18.jsonl",
    "openclaw": ".openclaw/agents/main/agent/openclaw-agent.sqlite",
    "opencode": ".local/share/opencode/opencode.db",
    "pi": ".pi/agent/sessions/--workspace--/2026-11-30T08-19-05.jsonl",
}
TWO_CALLS = [Heard(1000, 20), Heard(1030, 7)]


@pytest.fixture
def kept(tmp_path: Path, name: str) -> Iterator[Path]:
    """The record of ``name`` where the harness leaves it."""
    record = tmp_path / RECORDS[name]
    record.parent.mkdir(parents=True)
    if record.suffix == ".jsonl":
        shutil.copy(GOLDEN / f"{name}.jsonl", record)
        yield record
        return
    with closing(sqlite3.connect(record)) as database:  # still open when it is read: its log is not yet written back
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript((GOLDEN / f"{name}.sql").read_text())
        yield record


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_the_calls_and_their_tokens_are_found(tmp_path: Path, name: str, kept: Path) -> None:
    before = kept.read_bytes()
    assert list(find(name).transcript(tmp_path) or ()) == TWO_CALLS
    assert kept.read_bytes() == before


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_damaged_record_tells_what_is_left(tmp_path: Path, name: str, kept: Path) -> None:
    """A model can write into its HOME, and a harness that is ended leaves half a line."""
    if kept.suffix == ".jsonl":
        whole = kept.read_bytes()
        kept.write_bytes(b'\xff{"broken\n[1]\n{"message":7,"payload":7,"tokens":7}\n' + whole[:-40])
        assert list(find(name).transcript(tmp_path) or ()) in (TWO_CALLS, TWO_CALLS[:1])
    else:
        kept.with_name(kept.name + "-wal").unlink()
        kept.write_bytes(b"no database")
        assert find(name).transcript(tmp_path) is None


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_no_file_no_record(tmp_path: Path, name: str) -> None:
    assert find(name).transcript(tmp_path) is None


def test_a_question_without_end_is_given_up(tmp_path: Path) -> None:
    """A model can put a view in the place of a table."""
    file = tmp_path / "endless.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute(
            "CREATE VIEW message AS WITH RECURSIVE n(data) AS (SELECT 1 UNION ALL SELECT data + 1 FROM n) "
            "SELECT max(data) AS data FROM n"
        )
    assert rows(file, "SELECT data FROM message") is None
