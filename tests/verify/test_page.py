"""docs/verify.md is true: its commands run, and its findings are those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.storage.errors import Exit
from forge.verify.report import Kind
from tests.verify.made import conversation, write

PAGE = (Path(__file__).parents[2] / "docs" / "verify.md").read_text()
COMMANDS = [
    line.removeprefix("forge ").split()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
ELSEWHERE = {"--policy", "--model", "train"}
"""A server, a model: other tests run these commands."""


@pytest.mark.parametrize("words", [words for words in COMMANDS if not ELSEWHERE & set(words)], ids=" ".join)
def test_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    write(tmp_path / "data", {"s1": conversation("s1", 3), "s2": conversation("s2", 1)})
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(build(), words)
    assert done.exit_code == Exit.OK, done.output
    assert done.stdout


def test_it_names_every_finding() -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(Kind)
