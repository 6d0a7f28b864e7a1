"""Codex, the real program, and our list of models: no error in its log, and its own prompt and tools as without it.

An entry in the list would do neither: tried with 0.163.0, its ``base_instructions`` take the place of Codex's prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from forge.adapters.harnesses import find
from forge.adapters.harnesses.base import LaunchRequest
from forge.adapters.harnesses.packages import cache_folder
from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import Serving, calls, serving

SECONDS = 100.0
PROVIDER = "supports_websockets = false"


async def run(s: Serving, home: Path, *, catalogue: bool) -> str:
    """One task without tools; gives Codex's log."""
    adapter = find("codex")
    adapter.install(cache_folder(), print)
    workspace = home / "workspace"
    workspace.mkdir(parents=True)
    launch = adapter.launch(
        LaunchRequest(
            base_url=s.proxy.base_url,
            api_key="none",
            model="policy",
            prompt="Say hi.",
            workspace=str(workspace),
            home=str(home),
            installs=str(cache_folder()),
            context_tokens=32768,
            output_tokens=2048,
            seconds=SECONDS,
        )
    )
    for name, text in launch.files.items():
        if catalogue:
            text = text.replace(PROVIDER, f'{PROVIDER}\nmodel_catalog_url = "{s.proxy.base_url}/models"')
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "RUST_LOG": "warn", **launch.env}
    process = await asyncio.create_subprocess_exec(
        *launch.argv,
        cwd=workspace,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, log = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, (out, log)
    return log.decode()


@pytest.mark.harness
async def test_codex_reads_the_list_and_stays_itself(tmp_path: Path) -> None:
    """Field cases 23, 24, 25."""
    async with serving(tmp_path, ScriptedEngine(max_model_len=32768)) as s:
        s.engine.default = lambda _: Turn("hi")
        await run(s, tmp_path / "plain", catalogue=False)
        log = await run(s, tmp_path / "listed", catalogue=True)
        assert "failed to refresh available models" not in log
        (cached,) = (tmp_path / "listed").rglob("models_cache.json")
        assert json.loads(cached.read_text())["models"] == [], "it asked, and understood"
        plain, listed = (served.json for served in s.engine.served)
        assert _tools(listed) == _tools(plain)
        assert "exec_command" in _tools(plain)
        assert listed["messages"][0] == plain["messages"][0], "its prompt"
    assert [row.harness for row in calls(s.data)] == ["codex", "codex"]


def _tools(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]
