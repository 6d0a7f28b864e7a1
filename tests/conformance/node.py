"""npm packages that the conformance tests drive: pinned, in Forge's cache, and a script run on Node against a proxy.

A script is a module beside this file. It gets the package's entry module as ``SDK``, the proxy's address as
``BASE_URL`` and the session's key as ``API_KEY``, and prints one JSON document.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any, Final

from forge.adapters.harnesses.node import NODE
from forge.adapters.harnesses.packages import Npm, cache_folder

ANTHROPIC: Final = Npm(
    name="anthropic-sdk",
    version="1.14.0",
    requirement="@anthropic-ai/sdk@1.14.0",
    program="node_modules/@anthropic-ai/sdk/index.mjs",
    node=NODE,
)
OPENAI: Final = Npm(
    name="openai-sdk",
    version="7.59.0",
    requirement="openai@7.59.0",
    program="node_modules/openai/index.mjs",
    node=NODE,
)
LIMIT_S: Final = 60


def install(package: Npm) -> Path:
    """The package's entry module."""
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    for needed in (NODE, package):
        needed.install(cache, print)
    return cache / package.folder / package.program


async def run(script: str, package: Npm, *, base_url: str, api_key: str, **env: str) -> Any:
    """What ``script`` printed. Fails with what it said where it did not end well."""
    entry = await asyncio.to_thread(install, package)
    given = {"SDK": str(entry), "BASE_URL": base_url, "API_KEY": api_key, **env}
    process = await asyncio.create_subprocess_exec(
        str(cache_folder() / NODE.folder / NODE.program),
        str(Path(__file__).parent / script),
        env=given,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            said, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode(errors="replace")
    return json.loads(said)
