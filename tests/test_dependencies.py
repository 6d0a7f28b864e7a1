"""What the code imports is what pyproject declares: nothing that only this machine happens to have."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BESIDE = {"daft", "datasets", "mitmproxy", "pandas", "polars"}
"""Imported by files that another Python runs, with its own list of packages."""
LOCK = (ROOT / "requirements.lock").read_text()


def names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", each) for each in requirements)
    return {canonical(match.group()) for match in found if match}


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported(folder: str) -> set[str]:
    """Every module that is imported and is neither ours nor Python's."""
    modules: set[str] = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    ours = {"forge", "tests", "bench", "compression"}  # the last is Python's own from 3.14 on
    return {m for m in modules if m.split(".")[0] not in {*sys.stdlib_module_names, *ours, *BESIDE}}


def undeclared(folders: list[str], declared: set[str]) -> set[str]:
    owners = packages_distributions()
    missing = set()
    for module in set().union(*(imported(folder) for folder in folders)):
        if not {canonical(d) for d in owners.get(module.split(".")[0], ())} & declared:
            missing.add(module)
    return missing


def test_the_program_imports_only_what_it_declares() -> None:
    declared = names(DECLARED["dependencies"]) | names(DECLARED["optional-dependencies"]["train"])
    assert not undeclared(["forge", "proxy", "adapters", "storage"], declared)


def test_the_tests_import_only_what_they_declare() -> None:
    everything = names(DECLARED["dependencies"])
    for extra in DECLARED["optional-dependencies"].values():
        everything |= names(extra)
    assert not undeclared(["tests", "docs", "bench"], everything)


def test_the_lock_pins_all_but_torch_and_holds_no_address() -> None:
    pinned = {canonical(name) for name in re.findall(r"^([\w.-]+)==", LOCK, re.MULTILINE)}
    wanted = names(DECLARED["dependencies"])
    for extra in DECLARED["optional-dependencies"].values():
        wanted |= names(extra)
    assert wanted - pinned == {"torch", "rollout-forge"}
    assert not re.search(r"https?://", LOCK)
