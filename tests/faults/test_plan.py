"""The plan names tests that are there, and so do the promises of the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tests.faults

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"([\w/]+\.py)::(test_\w+)")


PAGE = (ROOT / "docs" / "durability.md").read_text()


@pytest.mark.parametrize("text", [tests.faults.__doc__, PAGE], ids=["plan", "docs"])
def test_every_named_test_is_there(text: str) -> None:
    named = NAMED.findall(text)
    assert len(named) >= 10
    for file, name in named:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / "tests" / file).read_text(), re.M), f"{file}::{name}"


def test_every_promise_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert all(NAMED.search(row) for row in rows if "---" not in row and "| test" not in row), rows
