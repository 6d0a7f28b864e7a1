"""mitmproxy, pinned by hash, in a folder of the cache of its own: a program beside us, never an import of ours.

The folder fits one minor version of Python, the one that runs this: 3.11 gets the last mitmproxy for it (11), later
ones get 12; one list with markers pins both. It is run with ``-S``, so that nothing else on this machine is seen by it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge.adapters.harnesses.python import START, Environment
from forge.proxy import intercept
from forge.storage.cache import cache_root

HERE: Final = Path(intercept.__file__).parent
REQUIREMENTS: Final = HERE / "requirements.txt"
ADDON: Final = HERE / "addon.py"
START_TEXT: Final = "from mitmproxy.tools.main import mitmdump\n\nmitmdump()\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mitmproxy(Environment):
    @property
    def lock(self) -> Path:
        return REQUIREMENTS


def environment() -> Mitmproxy:
    """Of this list of packages: another list is another folder."""
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:8]
    return Mitmproxy(
        name="mitmproxy",
        version=digest,
        requirement="mitmproxy and what it needs",
        program=START,
        start=START_TEXT,
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
