"""The proxy as a command: what stops it from starting, how it stops, and a disk that is full."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from typer.testing import CliRunner

from forge.cli import build
from forge.client import ControlClient
from forge.storage.dataset import Dataset
from forge.storage.errors import BadInput, ForgeError
from tests.engine import Gate, ScriptedEngine, Turn
from tests.faults.soak import LONG, rounds
from tests.proxy.process import argv, proxy_process, run_to_end
from tests.proxy.serving import USER

pytestmark = pytest.mark.process

FILE_LIMIT = 96 << 10
"""Bytes a file may have while the disk plays full: below one journal segment."""


async def test_a_port_in_use_is_named_with_its_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option, what in (("--port", "proxy"), ("--control-port", "control plane")):
            code, said = await run_to_end([*argv(tmp_path / "data", None, tmp_path / "r.json"), option, str(port)])
            assert code == 4
            assert f"error: the {what} cannot listen on 127.0.0.1:{port}" in said
            assert f"next: stop what listens there, or pass another {option}" in said


@pytest.mark.timeout(LONG)
async def test_a_data_directory_in_use_and_a_wrong_token_are_named(tmp_path: Path) -> None:
    async with proxy_process(tmp_path / "data", None, "--no-decoder") as proxy:
        for _ in range(rounds(1, 100)):
            code, said = await run_to_end(argv(tmp_path / "data", None, tmp_path / "other.json"))
            assert code == 4
            assert f"in use by pid {proxy.process.pid}" in said
        with pytest.raises(BadInput) as caught:
            async with ControlClient(proxy.control_url, "wrong") as control:
                await control.capacity()
        assert "control.token" in caught.value.hint
        assert await proxy.stop() == 0


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--upstream", "nonsense"], 2, "not a policy server's URL"),
        (["--sampling", "{"], 2, "--sampling is not JSON"),
        (["--sampling", "[]"], 2, "--sampling is not a JSON object"),
        (["--upstream-key-file", "/nowhere/key"], 2, "cannot read the upstream key file /nowhere/key"),
        (["--journal-keep", "lots"], 2, "'lots' is no size"),
        (["--control-host", "0.0.0.0"], 2, "may not listen on 0.0.0.0"),
        (["--host", "no.such.host.invalid"], 4, "cannot listen on no.such.host.invalid"),
        (["--data", "/proc/nowhere"], 4, "cannot"),
    ],
)
def test_bad_options_say_what_to_do(tmp_path: Path, more: list[str], code: int, words: str) -> None:
    args = [*argv(tmp_path / "data", None, tmp_path / "r.json")[3:], *more]
    with pytest.raises(ForgeError) as caught:
        build()(args, standalone_mode=False)
    assert (caught.value.exit_code, words in caught.value.message) == (code, True), caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("option", ["--port", "--control-port"])
def test_a_port_that_none_can_be_is_refused(tmp_path: Path, option: str) -> None:
    args = [*argv(tmp_path / "data", None, tmp_path / "r.json")[3:], option, "99999"]
    assert CliRunner().invoke(build(), args).exit_code == 2


async def test_what_is_not_http_is_one_line_of_log(tmp_path: Path) -> None:
    async with proxy_process(tmp_path / "data", None, "--no-decoder") as proxy:
        url = urlsplit(proxy.base_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
        )
        assert b"400" in await reader.readline()
        writer.close()
        assert await proxy.stop() == 0
    log = proxy.log.read_text()
    assert "not HTTP, answered with 400" in log
    assert "Traceback" not in log


async def test_sigterm_lets_running_calls_end_and_everything_be_decoded(tmp_path: Path) -> None:
    gate = Gate(is_open=False)
    body = {"model": "policy", "messages": [USER], "stream": True}
    async with (
        ScriptedEngine() as engine,
        aiohttp.ClientSession() as http,
        proxy_process(tmp_path / "data", engine.url) as proxy,
    ):
        url = f"{proxy.base_url}/chat/completions"
        engine.script(Turn("one two three", gate=gate))
        async with http.post(url, json=body) as answer:
            gate.release(2)
            await answer.content.readany()
            proxy.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(10):
                while not await _draining(http, url, body):
                    pass
            gate.open()
            assert b"[DONE]" in await answer.read()
        assert await asyncio.wait_for(proxy.process.wait(), 60) == 0, proxy.log.read_text()
    rows = sorted(Dataset(tmp_path / "data").calls(), key=lambda row: row.seq)
    assert rows[0].status == "ok"
    assert rows[0].trainable
    # Calls that asked whether it drains yet, and came before it did: left by their client, or done before it could.
    assert {row.status for row in rows[1:]} <= {"aborted", "ok"}


async def _draining(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bool:
    async with http.post(url, json=body) as answer:
        return answer.status == 503 and (await answer.json())["error"]["code"] == "draining"


async def test_sigterm_while_it_waits_for_the_policy_ends_it(tmp_path: Path) -> None:
    command = argv(tmp_path / "data", "http://127.0.0.1:9", tmp_path / "r.json")
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"waiting for the policy server" not in await process.stderr.readline():
            pass
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 130


async def test_a_full_disk_refuses_calls_and_recovers_by_itself(tmp_path: Path) -> None:
    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, resource.RLIM_INFINITY))

    body = {"model": "policy", "messages": [{"role": "user", "content": "word " * 400}]}
    whole: list[str] = []
    async with ScriptedEngine() as engine, aiohttp.ClientSession() as http:
        engine.default = lambda request: Turn("word " * 50)
        async with proxy_process(tmp_path / "data", engine.url, "--no-decoder", preexec=small_files) as proxy:
            url = f"{proxy.base_url}/chat/completions"
            async with asyncio.timeout(30):
                while True:
                    async with http.post(url, json=body) as answer:
                        if answer.status == 503:
                            assert (await answer.json())["error"]["code"] == "recorder_unavailable"
                            break
                        whole.append(answer.headers["X-Forge-Call-Id"])
                        await answer.read()
            served = len(engine.served)
            async with http.post(url, json=body) as answer:
                assert answer.status == 503
            assert len(engine.served) <= served + 1, "the engine is not called for what cannot be recorded"
            async with ControlClient(proxy.control_url, proxy.token) as control:
                assert await control.health()
            resource.prlimit(proxy.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            async with http.post(url, json=body) as answer:
                assert answer.status == 200
                whole.append(answer.headers["X-Forge-Call-Id"])
                await answer.read()
            assert await proxy.stop() == 0, proxy.log.read_text()
    code, said = await run_to_end([sys.executable, "-m", "forge", "decode", "--data", str(tmp_path / "data"), "--once"])
    assert code == 0, said
    rows = {row.call_id: row for row in Dataset(tmp_path / "data").calls()}
    assert [rows[call_id].status for call_id in whole] == ["ok"] * len(whole)
    assert all(rows[call_id].trainable for call_id in whole)
    assert {row.status for row in rows.values()} <= {"ok", "interrupted"}


async def test_the_ready_file_says_where_everything_is(tmp_path: Path) -> None:
    async with ScriptedEngine() as engine, proxy_process(tmp_path / "data", engine.url, "--no-implicit") as proxy:
        assert proxy.said.keys() == {"pid", "base_url", "control_url", "control_token_file", "data", "run_id"}
        assert proxy.said["pid"] == proxy.process.pid
        async with ControlClient(proxy.control_url, proxy.token) as control:
            assert await control.ready()
            ticket = await control.open_session()
            assert ticket.base_url == f"{proxy.base_url.removesuffix('/v1')}/s/{ticket.session_id}/v1"
        assert await proxy.stop() == 0
    log = proxy.log.read_text()
    assert proxy.token not in log
    assert ticket.api_key not in log
    assert json.loads((tmp_path / "ready.json").read_text())["run_id"] == "run"
