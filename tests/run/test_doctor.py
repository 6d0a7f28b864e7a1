"""``forge doctor`` finds what is there and names what is not."""

from __future__ import annotations

import socket
import sys

import pytest

from forge.storage.errors import Exit
from tests.engine import ScriptedEngine
from tests.proxy.process import run_to_end

pytestmark = pytest.mark.process

DOCTOR = [sys.executable, "-m", "forge", "doctor"]


async def test_a_server_that_gives_everything() -> None:
    async with ScriptedEngine() as engine:
        code, said = await run_to_end([*DOCTOR, "--policy", engine.url])
    assert "one real call" in said
    assert "tokens recorded" in said
    assert "http://127.0.0.1:8100/v1" in said
    assert code in (Exit.OK, Exit.UNAVAILABLE), said  # by what is installed here
    assert f"vllm at {engine.url}" in said


async def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        code, said = await run_to_end([*DOCTOR, "--policy", url])
    assert code == Exit.UNAVAILABLE
    assert url in said
    assert "next:" in said


@pytest.mark.model
async def test_the_embedded_server() -> None:
    code, said = await run_to_end(DOCTOR, 280.0)
    assert "embedded at http://127.0.0.1" in said
    assert "-- " not in "\n".join(line for line in said.splitlines() if "harness" not in line), said
    assert code == Exit.OK, said
