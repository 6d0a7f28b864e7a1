"""mitmproxy, pinned by hash, in a folder of the cache of its own: a program beside us, never an import of ours.

The folder fits one minor version of Python, the one that runs this: 3.11 gets the last mitmproxy for it (11), later
ones get 12; one list with markers pins both. It is run with ``-S``, so that nothing else on this machine is seen by it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge.adapters.harnesses.packages import Package, client
from forge.proxy import intercept
from forge.storage.cache import cache_root

HERE: Final = Path(intercept.__file__).parent
REQUIREMENTS: Final = HERE / "requirements.txt"
ADDON: Final = HERE / "addon.py"
START: Final = "__main__.py"
START_TEXT: Final = "from mitmproxy.tools.main import mitmdump\n\nmitmdump()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(Package):
    def fetch(self, into: Path, cache: Path, scratch: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--only-binary", ":all:", "--disable-pip-version-check", "--root-user-action", "ignore"]
        command += ["--target", str(into), "--requirement", str(REQUIREMENTS)]
        client(command, self.requirement, os.environ)
        (into / START).write_text(START_TEXT)


def environment() -> Environment:
    """Of this Python and this list of packages: another list is another folder."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:8]
    return Environment(
        name="mitmproxy",
        version=f"{digest}-py{sys.version_info.major}{sys.version_info.minor}",
        requirement="mitmproxy and what it needs",
        program=START,
    )


def folder() -> Path:
    """``$FORGE_CACHE/intercept``, by default ``~/.cache/forge/intercept``."""
    return cache_root() / "intercept"


def install(say: Callable[[str], None]) -> None:
    """Does nothing where it is there already. Raises ``Unavailable`` where it cannot be had."""
    environment().install(folder(), say)


def mitmdump() -> list[str]:
    """The command, to be followed by mitmdump's arguments."""
    return [sys.executable, "-I", "-S", str(folder() / environment().folder)]
