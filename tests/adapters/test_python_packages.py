"""Programs from PyPI with all they need: locks that pin every byte, and a Python that runs wherever it lies."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from forge.adapters.harnesses import HARNESSES
from forge.adapters.harnesses.python import LOCKS, PROBE, PYTHON, RUN_PATH, Environment, _look_beside

ENVIRONMENTS = [p for adapter in HARNESSES.values() for p in adapter.packages if isinstance(p, Environment)]
COMPROMISED = {"litellm": ("1.82.7", "1.82.8")}


def pins(name: str) -> dict[str, set[str]]:
    lines = re.findall(r"^([a-z0-9._-]+)==([^ ;]+)", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE)
    found: dict[str, set[str]] = {}
    for package, version in lines:
        found.setdefault(package, set()).add(version)
    return found


@pytest.mark.parametrize("package", ENVIRONMENTS, ids=lambda package: package.name)
def test_a_lock_pins_every_package_by_hash_and_names_no_place(package: Environment) -> None:
    text = package.lock.read_text()
    name, _, version = package.requirement.partition("==")
    assert pins(package.name)[name] == {version}
    assert package.version == version
    assert f"{name}=={version}" in (LOCKS / f"{package.name}.in").read_text()
    for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"https?://|file:|--index|--find-links|(^|\s)/", text)


@pytest.mark.parametrize("package", ENVIRONMENTS, ids=lambda package: package.name)
def test_no_lock_holds_a_compromised_release(package: Environment) -> None:
    for name, versions in COMPROMISED.items():
        assert not pins(package.name).get(name, set()) & set(versions)


def test_another_python_lock_or_start_is_another_folder() -> None:
    package = ENVIRONMENTS[0]
    ours = f"py{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(f"{package.name}-{package.version}-{ours}-[0-9a-f]{{8}}", package.folder)
    assert package.folder == replace(package).folder
    assert package.folder != replace(package, start="pass").folder
    assert package.folder != replace(package, name=ENVIRONMENTS[1].name).folder.replace(
        ENVIRONMENTS[1].name, package.name
    )


def test_a_fixed_run_path_becomes_a_relative_one(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_bytes(b"ELF\0/opt/built/here/lib\0/opt/built/here/lib/python3.11\0rest")
    _look_beside(program, Path("/opt/built/here"))
    padded = RUN_PATH.ljust(len(b"/opt/built/here/lib"), b"\0")
    assert program.read_bytes() == b"ELF\0" + padded + b"\0/opt/built/here/lib/python3.11\0rest"
    _look_beside(program, Path("/opt"))
    assert padded in program.read_bytes(), "what does not fit is left alone"


@pytest.mark.process
def test_the_copied_python_runs_wherever_it_lies(tmp_path: Path) -> None:
    PYTHON.install(tmp_path / "cache", print)
    moved = tmp_path / "elsewhere" / PYTHON.folder
    moved.parent.mkdir()
    (tmp_path / "cache" / PYTHON.folder).rename(moved)
    script = f"import sys\nprint(sys.version)\nprint(sys.path)\n{PROBE}"
    ran = subprocess.run(
        [str(moved / PYTHON.program), "-I", "-c", script], env={}, capture_output=True, text=True, check=True
    )
    version, path, probed = ran.stdout.splitlines()
    assert version == sys.version.splitlines()[0]
    assert all(each.startswith(f"'{moved}") for each in path.strip("[]").split(", "))
    modules, files = json.loads(probed)
    assert {"ssl", "sqlite3", "zlib"} <= set(modules)
    homes = (str(moved), "/usr", "/lib", "/bin")
    assert not [each for each in files if not each.startswith(homes)]
