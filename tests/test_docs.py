"""The docs say what the code says."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import typer
import typer.main

from forge.cli import build
from forge.storage import columns, records

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *sorted(ROOT.glob("*.md"))]

DERIVED = {
    "calls": {
        "messages_prefix_len",
        "tools_hash",
        "prompt_prefix_len",
        "prompt_suffix_ids",
        "prompt_len",
        "prompt_hash",
        "chain_len",
        "start_time",
    },
    "sessions": {"reward_time", "open_time", "close_time"},
    "samples": set(),
}
"""Columns that storage makes from a record's fields."""
STORED_OTHERWISE = {
    "calls": {"prompt_ids", "start_us"},
    "sessions": {"reward_us", "open_us", "close_us"},
    "samples": set(),
}


@pytest.mark.parametrize(
    ("table", "record"),
    [("calls", records.Call), ("sessions", records.Session), ("samples", records.Sample)],
)
def test_every_field_is_a_column_and_every_column_a_field(table: str, record: type) -> None:
    declared = {c.name for c in columns.TABLES[table]} - DERIVED[table]
    assert {f.name for f in fields(record)} - STORED_OTHERWISE[table] == declared


def test_the_dataset_page_is_made_from_the_columns() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "dataset.py"))["page"]()
    assert (ROOT / "docs" / "dataset.md").read_text() == made, "next: make docs"


def test_agents_page_is_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text().splitlines()) < 80


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_and_option_in_the_docs_exists() -> None:
    """``forge NAME ... --option`` in any code block or code span is a command and option of ours."""
    root = typer.main.get_command(build())
    for page in PAGES:
        for line in re.findall(r"(?:^|`|\$ )forge ([^`#\n]+)", page.read_text(), re.MULTILINE):
            ours = line.split("|")[0].split(" -- ")[0]  # what follows is another program's command
            command, words = root, ours.split()
            context = typer.Context(command)
            while words and hasattr(command, "commands"):
                assert words[0] in command.commands or words[0].startswith("-"), f"{page.name}: forge {line}"
                if words[0].startswith("-"):
                    break
                command = command.commands[words.pop(0)]
            known = {o for p in command.get_params(context) for o in (*p.opts, *p.secondary_opts)} | {"--help"}
            for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", " ".join(words)):
                assert option in known, f"{page.name}: forge {line}: no option {option}"
