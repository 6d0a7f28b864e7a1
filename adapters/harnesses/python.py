"""Python programs with dependencies, pinned by hash, and the Python that runs them, as packages of the cache.

The non-obvious facts: a sandbox sees the cache at another path and need not see the Python that runs this at all, so
the interpreter is copied (it finds its own library from where it lies), and programs lie in plain folders, not in
virtual environments, which are tied to a path. A folder is run as ``python FOLDER``: Python then puts that folder first
on ``sys.path`` for this one process, so that nothing of it leaks into the programs that an agent starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge.adapters.harnesses.packages import Package, client
from forge.storage.errors import Unavailable

LOCKS: Final = Path(__file__).parent / "locks"
"""``NAME.txt`` is made from ``NAME.in`` by ``uv pip compile``; its first lines say how."""
START: Final = "__main__.py"
SYSTEM: Final = ("/usr", "/lib", "/lib64", "/bin")
"""Libraries that lie here are seen in every sandbox and are not copied."""
NOT_COPIED: Final = ("site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "config-*")
RUN_PATH: Final = b"$ORIGIN/../lib"
"""Where a program looks for its libraries, as the linker takes it: beside itself."""
PROBE: Final = """
import importlib, json
loaded = []
for name in ("bz2", "ctypes", "decimal", "hashlib", "lzma", "readline", "sqlite3", "ssl", "uuid", "zlib"):
    try:
        importlib.import_module(name)
        loaded.append(name)
    except ImportError:
        pass
try:
    maps = open("/proc/self/maps").read().splitlines()
except OSError:
    maps = []
print(json.dumps([loaded, sorted({line.split(None, 5)[5] for line in maps if "/" in line})]))
"""
"""Imports what is backed by shared libraries; prints which of it there is, and every file that is mapped."""
PROBE_LIMIT_S: Final = 60
HINT: Final = "run forge with the system's Python, or with one that uv provides"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter(Package):
    """A copy of the Python that runs this, without what was installed into it."""

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        base, binary = Path(sys.base_prefix).resolve(), Path(sys.executable).resolve()
        library = Path(sysconfig.get_path("stdlib")).resolve()
        copy = into / self.program
        copy.parent.mkdir(parents=True)
        shutil.copy2(binary, copy)
        shutil.copytree(
            library,
            into / library.relative_to(base),
            ignore=shutil.ignore_patterns(*NOT_COPIED),
            ignore_dangling_symlinks=True,
        )
        modules, files = _probe(binary)
        for path in files:
            if path.is_relative_to(base) and not path.is_relative_to(library) and path != binary and not _system(path):
                _copy_library(path, into / path.relative_to(base))
        _look_beside(copy, base)
        kept, used = _probe(copy)
        astray = [str(path) for path in used if not path.is_relative_to(into.resolve()) and not _system(path)]
        astray += [f"module {name}" for name in modules if name not in kept]
        if astray:
            raise Unavailable(f"the Python at {base} cannot be copied because of {astray[0]}", HINT)


PYTHON: Final = Interpreter(
    name="python",
    version=platform.python_version(),
    requirement=f"a copy of Python {platform.python_version()}",
    program="bin/python3",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Package):
    """A program and all it needs, at the versions and hashes of a lock."""

    start: str
    """Python source that starts the program."""

    @property
    def folder(self) -> str:
        """Compiled dependencies fit one minor version of Python, and another lock is another install."""
        made_from = hashlib.sha256(self.lock.read_bytes() + self.start.encode()).hexdigest()[:8]
        return f"{self.name}-{self.version}-py{sys.version_info.major}{sys.version_info.minor}-{made_from}"

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--only-binary", ":all:", "--disable-pip-version-check", "--root-user-action", "ignore"]
        command += ["--target", str(into), "--requirement", str(self.lock)]
        client(command, self.requirement, os.environ)
        (into / START).write_text(self.start)


def _probe(python: Path) -> tuple[list[str], list[Path]]:
    """What ``python`` can import of ``PROBE``'s modules, and the files it then has mapped (none without a /proc)."""
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", PROBE], env={}, capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().splitlines()[-1:]
        raise Unavailable(f"the Python at {python} does not work: {' '.join(said)}", HINT) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"the Python at {python} does not work: {error}", HINT) from error
    modules, files = json.loads(done.stdout)
    return modules, [Path(path) for path in files]


def _system(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in SYSTEM)


def _copy_library(path: Path, to: Path) -> None:
    """A library and the shorter names that programs know it by."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(path, to)
    for link in path.parent.iterdir():
        if link.is_symlink() and link.resolve() == path:
            (to.parent / link.name).symlink_to(path.name)


def _look_beside(program: Path, base: Path) -> None:
    """Many a Python is linked to look for its library where it was built; the copy is told to look beside itself."""
    fixed, content = f"{base}/lib".encode(), program.read_bytes()
    if len(fixed) >= len(RUN_PATH):
        program.write_bytes(content.replace(b"\0" + fixed + b"\0", b"\0" + RUN_PATH.ljust(len(fixed), b"\0") + b"\0"))
