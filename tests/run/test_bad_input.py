"""Every command that reads, over every fault that a data directory can have: it names the file, row or run and the next
step, and what is good is read all the same.

One table: what each command does at each fault. Two runs, ``run-a`` with the fault and ``run-b`` without.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset
from forge.storage.errors import Exit, ForgeError
from forge.storage.frames import Close, Data
from forge.storage.journal import journal_dir, segment_path
from forge.storage.parts import parts_in, run_dir, table_dir
from tests.storage.frames_kit import Kit, whole_answer

RUNS = ("run-a", "run-b")
TABLES = {"calls": None, "sessions": None, "samples": "default"}
NEXT = (
    "forge decode --rebuild",
    "move it out",
    "move foreign files out",
    "newer one",
    "forge sessions",
    "forge verify",
)
"""What a user may be told to do."""


def session_of(run: str, number: int = 0) -> str:
    return f"s{run[-1]}{number}"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("good")
    for writer, run in enumerate(RUNS):
        kit = Kit(data, run_id=run, writer=writer, seed=writer)
        for number in range(2):
            kit.open_session(session_of(run, number), group_id="g", rollout_index=number, task_id="t")
            last = None
            for _ in range(3):
                last = kit.call(session_of(run, number), parent=last)
                kit.cut()
            kit.close_session(session_of(run, number), reward=float(number))
            kit.cut()
        kit.close()
    decoder = Decoder(data)
    decoder.catch_up()
    decoder.close()
    return data


@pytest.fixture
def data(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "data"))


def part(data: Path, table: str, run: str = "run-a") -> Path:
    """The second call's part, the first of other tables."""
    return parts_in(table_dir(data, table, TABLES[table]), run)[int(table == "calls")]


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(raw)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), path)


def newer(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"forge.schema_version": b"99"}), path)


def beside(path: Path) -> None:
    """Somebody's own file among the parts."""
    foreign(path.with_name("mine.parquet"))


def folder(path: Path) -> None:
    """No part, for anyone."""
    path.with_name("mine.parquet").mkdir()


FAULTS = (flipped, cut_short, emptied, foreign, newer, beside)
ADDED = (beside, folder)
"""Faults that leave our own parts whole."""
Told = tuple[int, str]


def run(data: Path, *arguments: str) -> Told:
    """Exit code and all that is said."""
    logging.getLogger().handlers.clear()  # of a command before, whose streams are closed
    done = CliRunner().invoke(build(), [*arguments, "--data", str(data)])
    if isinstance(done.exception, ForgeError):
        return done.exception.exit_code, f"{done.output}{done.exception.message}\n{done.exception.hint}"
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.output


def commands(data: Path, name: str) -> Told:
    a, b = RUNS
    out = str(data.parent / "rows")
    return {
        "sessions": lambda: run(data, "sessions"),
        "show": lambda: run(data, "show", session_of(a)),
        "show tokens": lambda: run(data, "show", session_of(a), "--tokens"),
        "stats": lambda: run(data, "stats", a),
        "verify": lambda: run(data, "verify", a),
        "export": lambda: run(data, "export", "--to", "verl", "--out", out),
        "export by recipe": lambda: run(data, "export", "--to", "verl", "--max-tokens", "500", "--out", out),
        "train": lambda: run(data, "train", "--model", "none"),
        "rebuild": lambda: run(data, "decode", "--rebuild"),
        "sessions of the good run": lambda: run(data, "sessions", "--run", b),
        "show of the good run": lambda: run(data, "show", session_of(b)),
        "stats of the good run": lambda: run(data, "stats", b),
        "verify of the good run": lambda: run(data, "verify", b),
        "export of the good run": lambda: run(data, "export", "--to", "verl", b, "--out", out),
    }[name]()


READ: dict[str, tuple[str, ...]] = {
    "sessions": ("calls", "sessions", "samples"),
    "show": ("calls", "sessions"),
    "show tokens": ("calls", "sessions"),
    "stats": ("calls", "sessions", "samples"),
}
"""Tables that a command shows; it leaves out what it cannot read, and says so."""
REFUSE: dict[str, tuple[str, ...]] = {
    "verify": ("calls", "sessions", "samples"),
    "export": ("sessions", "samples"),
    "export by recipe": ("calls", "sessions"),
    "train": ("calls", "sessions", "samples"),
}
"""Tables that a command builds on; it gives nothing on half of them."""


def crossed(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str, Callable[[Path], None]]]:
    """Each command with each table it reads, and every fault somewhere."""
    pairs = [(command, name) for command, names in table.items() for name in names]
    return [(*pair, FAULTS[at % len(FAULTS)]) for at, pair in enumerate(pairs)]


@pytest.mark.parametrize(("command", "table", "fault"), crossed(READ))
def test_what_shows_data_names_a_bad_file_and_shows_the_rest(
    data: Path, command: str, table: str, fault: Callable[[Path], None]
) -> None:
    path = part(data, table)
    fault(path)
    code, said = commands(data, command)
    assert code == 0, said
    assert str(path if fault not in ADDED else path.with_name("mine.parquet")) in said
    assert any(step in said for step in NEXT)
    assert (session_of("run-a") if command in ("sessions", "show") else "run-a" if command == "stats" else "") in said


@pytest.mark.parametrize(("command", "table", "fault"), crossed(REFUSE))
def test_what_builds_on_data_refuses_and_names_the_bad_file(
    data: Path, command: str, table: str, fault: Callable[[Path], None]
) -> None:
    path = part(data, table)
    fault(path)
    code, said = commands(data, command)
    assert code in (Exit.BAD_INPUT, Exit.UNTRAINABLE), said
    assert str(path if fault not in ADDED else path.with_name("mine.parquet")) in said.replace("\n", "")
    assert any(step in said for step in NEXT)


@pytest.mark.parametrize(("table", "fault"), [("calls", flipped), ("sessions", foreign), ("samples", beside)])
def test_a_bad_file_of_one_run_is_nothing_to_another(data: Path, table: str, fault: Callable[[Path], None]) -> None:
    fault(part(data, table))
    for name in ("show", "stats", "verify", "export"):
        code, said = commands(data, f"{name} of the good run")
        assert code == 0, (name, said)


@pytest.mark.parametrize(
    ("table", "fault"),
    [("calls", flipped), ("sessions", emptied), ("samples", newer), ("calls", beside), ("sessions", folder)],
)
def test_a_rebuild_makes_bad_parts_anew_and_touches_nobodys_own(
    good: Path, data: Path, table: str, fault: Callable[[Path], None]
) -> None:
    path = part(data, table)
    fault(path)
    code, said = commands(data, "rebuild")
    assert code == 0, said
    assert path.read_bytes() == (good / path.relative_to(data)).read_bytes()
    assert path.with_name("mine.parquet").exists() == (fault in ADDED)
    assert len(list(Dataset(data).calls())) == 12


def test_a_dangling_parent_names_its_row_and_file(data: Path) -> None:
    parts = parts_in(table_dir(data, "calls"), "run-a")
    parts[0].unlink()
    for command, code in (("show", Exit.FAILED), ("verify", Exit.UNTRAINABLE), ("export by recipe", Exit.FAILED)):
        found, said = commands(data, command)
        assert found == code, said
        assert "call c00001000002 (choice 0)" in said.replace("\n", " ")
        assert parts[1].name in said.replace("\n", "")
        assert "forge decode --rebuild" in said
    assert commands(data, "train")[0] == Exit.UNTRAINABLE
    for command in ("sessions", "stats", "show of the good run", "verify of the good run"):
        assert commands(data, command)[0] == 0


@pytest.mark.parametrize("command", ["sessions", "stats", "verify", "export", "train"])
def test_a_run_that_does_not_exist_is_named_with_those_that_do(data: Path, command: str) -> None:
    arguments = {
        "sessions": ["sessions", "--run", "nope"],
        "stats": ["stats", "nope"],
        "verify": ["verify", "nope"],
        "export": ["export", "nope", "--to", "verl", "--out", str(data / "x")],
        "train": ["train", "--run", "nope"],
    }[command]
    code, said = run(data, *arguments)
    assert code == Exit.BAD_INPUT
    assert "'nope'" in said
    assert "run-a, run-b" in said


def test_a_session_that_does_not_exist_is_named(data: Path) -> None:
    code, said = run(data, "show", "nope")
    assert (code, "'nope'" in said, "forge sessions" in said) == (Exit.BAD_INPUT, True, True)


def test_an_unknown_trainer_is_named_with_those_there_are(data: Path) -> None:
    code, said = run(data, "export", "--to", "nope", "--out", str(data / "x"))
    assert code == Exit.BAD_INPUT
    assert "nope" in said
    assert "verl" in said


@pytest.mark.parametrize("command", ["sessions", "show", "stats", "verify", "export", "train", "rebuild"])
@pytest.mark.parametrize("there", [True, False], ids=["another folder", "nothing"])
def test_a_folder_without_data_is_named(tmp_path: Path, command: str, there: bool) -> None:
    data = tmp_path / "elsewhere"
    if there:
        data.mkdir()
        (data / "file").write_text("mine")
    code, said = commands(data, command)
    assert code == Exit.BAD_INPUT, said
    assert str(data) in said.replace("\n", "").replace("│", "").replace(" ", "")


@pytest.mark.parametrize("trainer", ["verl", "sft-tokens"])
def test_rows_without_ids_cannot_be_trained_on(tmp_path: Path, trainer: str) -> None:
    """Of a policy server that gives none: named, with the reason."""
    data = tmp_path / "data"
    kit = Kit(data, run_id="run-a")
    kit.open_session("sa", group_id="g")
    kit.begin("sa", turn := kit.next_turn("sa"))
    answer = json.loads(whole_answer(turn))
    del answer["prompt_token_ids"], answer["choices"][0]["token_ids"], answer["choices"][0]["logprobs"]
    kit.journal.append(Data(call_id=turn.call_id), json.dumps(answer).encode())
    kit.journal.append(Close(call_id=turn.call_id, status="ok", http_status=200, content_type="application/json"))
    kit.close_session("sa", reward=1.0)
    kit.cut()
    kit.close()
    assert run(data, "decode", "--once")[0] == 0
    for arguments in (("export", "--to", trainer, "--out", str(tmp_path / "x")), ("train", "--model", "none")):
        code, said = run(data, *arguments)
        assert code == Exit.UNTRAINABLE, said
        assert "nothing to export" in said or "no samples in the runs asked for (run-a)" in said
        assert "prompt_ids_missing" in said or arguments[0] == "export"
    assert json.loads(run(data, "stats", "run-a", "--json")[1])["rows"] == 0


def test_a_damaged_journal_is_no_reason_to_throw_rows_away(data: Path) -> None:
    """A rebuild would make less than there is: it is refused, by the name of the place."""
    path = segment_path(journal_dir(data, 0), 1)
    flip_in_the_middle(path)
    code, said = commands(data, "rebuild")
    assert code == Exit.UNAVAILABLE
    assert f"{path} at byte " in said
    assert "restore" in said
    assert len(list(Dataset(data).calls())) == 12


def test_what_a_damaged_journal_still_holds_is_decoded_and_the_rest_is_named(data: Path) -> None:
    path = segment_path(journal_dir(data, 0), 1)
    flip_in_the_middle(path)
    for table in TABLES:
        shutil.rmtree(run_dir(table_dir(data, table, TABLES[table]), "run-a"))
    code, said = commands(data, "rebuild")
    assert code == Exit.FAILED
    assert f"{path} at byte " in said
    assert "restore" in said
    rows = list(Dataset(data).calls())
    assert [row.call_id for row in rows if not row.trainable] == ["c00001000002"]
    assert len(rows) == 12


def flip_in_the_middle(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"chatcmpl-c00001000002") + 30] ^= 1
    path.write_bytes(raw)
