"""Dependencies run one way, nothing lands under a bare name, and light commands load nothing heavy."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("forge", "proxy", "adapters", "storage")
MAY_IMPORT = {
    "storage": {"storage"},
    "proxy": {"proxy", "storage"},
    "adapters": {"adapters", "storage"},
    "forge": {"forge", "proxy", "adapters", "storage"},
}
HEAVY = {"torch", "ray", "transformers"}


def modules(folder: str) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside = path.relative_to(ROOT).parts
        if folder != "forge" or inside[1] not in FOLDERS:
            yield path


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(name: str) -> str | None:
    """The layer a dotted import stands in; None if it is not ours."""
    parts = name.split(".")
    if parts[0] != "forge" or name == "forge.__version__":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in FOLDERS else "forge"


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_point_one_way(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules(folder)
        for name in imported(path)
        if (layer(name) or folder) not in MAY_IMPORT[folder] or name.split(".")[0] in FOLDERS[1:]
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["proxy", "adapters", "storage"])
def test_no_heavy_import_below_the_root(folder: str) -> None:
    wrong = [f"{p}: {n}" for p in modules(folder) for n in imported(p) if n.split(".")[0] in HEAVY]
    assert not wrong


def loaded_by(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint('MODULES', json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    last = next(line for line in done.stdout.splitlines() if line.startswith("MODULES "))
    names: set[str] = set(json.loads(last.removeprefix("MODULES ")))
    return names


@pytest.mark.parametrize(
    "code",
    [
        "from forge.cli import build; import typer.main; typer.main.get_command(build())",
        "import pkgutil, importlib, forge.proxy as p\n"
        "for m in pkgutil.walk_packages(p.__path__, 'forge.proxy.'): importlib.import_module(m.name)",
    ],
    ids=["the command line", "the proxy"],
)
def test_light_parts_load_nothing_heavy_and_nothing_bare(code: str) -> None:
    names = loaded_by(code)
    assert not names & HEAVY
    assert not names & set(FOLDERS[1:])


def test_the_folders_are_reached_by_relative_symlinks() -> None:
    for folder in FOLDERS[1:]:
        link = ROOT / "forge" / folder
        assert link.is_symlink()
        assert link.readlink() == Path("..") / folder
