"""docs/harnesses.md is true: its table, its program and the commands that it prints."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from forge.adapters.harnesses import HARNESSES
from forge.adapters.harnesses.command import PLACEHOLDERS
from forge.storage.dataset import Dataset
from tests.engine import ScriptedEngine, Turn
from tests.proxy.process import run_to_end

PAGE = (Path(__file__).parents[2] / "docs" / "harnesses.md").read_text()
ROWS = {
    cells[0].strip("`"): cells[1:]
    for line in PAGE.partition("## The words")[2].partition("\n## ")[0].splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
}
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
(PROGRAM,) = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [line for language, text in BLOCKS if not language for line in text.splitlines()]


@pytest.mark.parametrize("name", sorted(HARNESSES))
def test_every_harness_has_a_true_row(name: str) -> None:
    adapter = HARNESSES[name]
    assert name in ROWS, "add a row to docs/harnesses.md"
    version, wire, size, why = ROWS[name]
    assert wire == adapter.wire
    assert version == adapter.version, "another version: measure its size again too"
    assert size
    assert why


def test_every_placeholder_is_told_of() -> None:
    assert all(f"{{{name}}}" in PAGE for name in PLACEHOLDERS)


@pytest.mark.process
@pytest.mark.parametrize("command", [line for line in COMMANDS if line.split()[2] in ("list", "launch")])
def test_what_needs_no_harness_runs_as_printed(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.process
async def test_the_program_of_the_page_runs_as_a_harness(tmp_path: Path) -> None:
    task = {"id": "t", "prompt": "it's $(odd) {model}", "files": {"agent.py": PROGRAM}}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(task))
    (line,) = [line for line in COMMANDS if "--harness command" in line]
    async with ScriptedEngine() as engine:
        engine.default = lambda request: Turn("Hello there.")
        words = shlex.split(line.replace("tasks.jsonl", str(tmp_path / "tasks.jsonl")))
        command = [sys.executable, "-m", *words, "--policy", engine.url, "--data", str(tmp_path), "--run", "r"]
        code, said = await run_to_end(command, 120)
    assert code == 0, said
    (session,) = Dataset(tmp_path).sessions("r")
    assert (session.harness, session.status, session.group_id) == ("command", "completed", "r/t/command")
    (call,) = Dataset(tmp_path).calls("r", session.session_id)
    assert json.loads(call.messages)[-1]["content"] == "it's $(odd) {model}"
    assert (tmp_path / "harness" / "r" / session.session_id / "stdout").read_text() == "Hello there.\n"
