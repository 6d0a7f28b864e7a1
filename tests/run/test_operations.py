"""Watching and ending data from the command line, beside a proxy process that goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import aiohttp
import pytest

from forge.client import ControlClient, NoCapacity
from forge.storage.dataset import Dataset
from tests.engine import ScriptedEngine, Turn
from tests.proxy.process import proxy_process, run_to_end
from tests.proxy.serving import USER

FORGE = [sys.executable, "-m", "forge"]


@pytest.mark.process
async def test_a_proxy_is_watched_and_an_old_run_deleted_beside_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with (
        ScriptedEngine() as engine,
        proxy_process(data, engine.url, "--disk-budget", "1G") as proxy,
        ControlClient(proxy.control_url, proxy.token) as control,
        aiohttp.ClientSession() as http,
    ):
        engine.default = lambda request: Turn("one two three")
        for run_id in ("old", "new"):
            ticket = await control.open_session(run_id=run_id, task_id=f"task of {run_id}")
            headers = {"Authorization": f"Bearer {ticket.api_key}"}
            async with http.post(
                f"{ticket.base_url}/chat/completions", json={"messages": [USER]}, headers=headers
            ) as answer:
                assert answer.status == 200
            if run_id == "old":
                await control.close_session(ticket.session_id, reward=1.0)

        code, said = await run_to_end([*FORGE, "top", "--control", proxy.control_url, "--data", str(data), "--once"])
        assert code == 0, said
        assert "task of new" in said
        assert "task of old" not in said, "it is closed"
        assert "of 1.1 GB" in said

        delete = [*FORGE, "delete", "--data", str(data), "--yes"]
        code, said = await run_to_end([*delete, "new"])
        assert (code, "sessions are open" in said) == (4, True), said
        code, said = await run_to_end([*delete, "run"])
        assert (code, "run of a proxy that is up" in said or "no run" in said) in ((4, True), (2, True)), said
        code, said = await run_to_end([*delete, "old"])
        assert (code, "1 run deleted" in said) == (0, True), said

        async with http.post(
            f"{ticket.base_url}/chat/completions", json={"messages": [USER]}, headers=headers
        ) as answer:
            assert answer.status == 200
        await control.close_session(ticket.session_id, reward=0.0)
        assert await proxy.stop() == 0, proxy.log.read_text()
    assert {call.run_id for call in Dataset(data).calls()} == {"new"}
    assert len(list(Dataset(data).calls())) == 2
    assert "Traceback" not in proxy.log.read_text()


@pytest.mark.process
async def test_a_budget_that_is_used_up_refuses_from_the_first_session(tmp_path: Path) -> None:
    async with (
        ScriptedEngine() as engine,
        proxy_process(tmp_path / "data", engine.url, "--disk-budget", "100") as proxy,
        ControlClient(proxy.control_url, proxy.token) as control,
    ):
        async with aiohttp.ClientSession() as http:
            while True:  # measured soon after the start
                async with http.get(f"{proxy.control_url}/readyz") as answer:
                    if (await answer.json())["warnings"]:
                        break
        with pytest.raises(NoCapacity, match="budget of 100"):
            await control.open_session()
        code, said = await run_to_end(
            [*FORGE, "top", "--control", "http://127.0.0.1:9", "--data", str(tmp_path / "data")]
        )
        assert (code, "does not answer" in said) == (4, True), said
