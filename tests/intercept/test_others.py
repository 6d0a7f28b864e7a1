"""Hosts that are not the policy's: passed without being opened, or refused with the way out; and strangers."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from forge.proxy.intercept.hosts import Others
from tests.engine import Fault, Turn
from tests.intercept.kit import KEY, WAIT_S, There, holding, intercepted, program
from tests.tls import self_signed

pytestmark = pytest.mark.process

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


async def curl(there: There, url: str, *more: str, ca: Path | None = None, proxy: str = "") -> str:
    """Status and body of one request; NO_PROXY is off, so that hosts of this machine can be the others."""
    argv = ["curl", "-sS", "-w", "\n%{http_connect} %{http_code}", url, *more]
    env = there.env(NO_PROXY="", no_proxy="")
    env |= {"CURL_CA_BUNDLE": str(ca)} if ca else {}
    env |= dict.fromkeys(("https_proxy", "http_proxy"), proxy) if proxy else {}
    async with program(argv, env) as running:
        assert running.process.stdout is not None
        output = await asyncio.wait_for(running.process.stdout.read(), WAIT_S)
    return output.decode()


@asynccontextmanager
async def elsewhere(folder: Path, *, tls: bool) -> AsyncIterator[tuple[int, list[dict[str, str]]]]:
    """A web server that is no model provider; its port and the headers of what came."""
    came: list[dict[str, str]] = []

    async def handle(request: web.Request) -> web.Response:
        came.append(dict(request.headers))
        return web.Response(text=f"elsewhere {request.path_qs}")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = None
    if tls:
        context, _ = self_signed(folder)
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield runner.addresses[0][1], came
    finally:
        await runner.cleanup()


async def test_other_hosts_pass_untouched(tmp_path: Path) -> None:
    """Their own certificate reaches the program: nothing opened the TLS between them."""
    async with intercepted(tmp_path, Others.PASS) as there, elsewhere(tmp_path, tls=True) as (port, came):
        own = ("-H", f"Authorization: Bearer {KEY}")
        said = await curl(there, f"https://localhost:{port}/x?key=1", *own, ca=tmp_path / "localhost.pem")
        assert said == "elsewhere /x?key=1\n200 200"
        assert came[0]["Authorization"] == f"Bearer {KEY}"
        async with elsewhere(tmp_path, tls=False) as (plain, seen):
            assert await curl(there, f"http://localhost:{plain}/y", *own) == "elsewhere /y\n000 200"
        assert seen[0]["Authorization"] == f"Bearer {KEY}"
        assert not {name.lower() for name in seen[0]} & {"proxy-authorization", "via", "x-forwarded-for"}
        assert not await there.calls()
        assert not holding(tmp_path, KEY)


async def test_other_hosts_are_refused_with_the_way_out(tmp_path: Path) -> None:
    async with intercepted(tmp_path) as there, elsewhere(tmp_path, tls=True) as (port, came):
        assert (await curl(there, f"https://localhost:{port}/x", "-k")).endswith("\n403 000")
        body, status = (await curl(there, f"http://localhost:{port}/x?key={KEY}", "-d", "x")).rsplit("\n", 1)
        assert status == "000 403"
        error = json.loads(body)["error"]
        assert error["code"] == "host_blocked"
        for word in ("localhost/x", "--others pass", "--map localhost"):
            assert word in error["message"]
        # A provider's host, beside the paths that are the policy's.
        body, status = (await curl(there, "https://chatgpt.com/backend-api/me")).rsplit("\n", 1)
        assert (status, json.loads(body)["error"]["code"]) == ("200 403", "host_blocked")
        assert not came
        assert not await there.calls()
    log = (tmp_path / "intercept.log").read_text()
    assert all(f"blocked: {where}" in log for where in ("localhost", "localhost/x", "chatgpt.com/backend-api/me"))
    assert KEY not in log


async def test_paths_beside_the_policys_pass_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's TLS is opened, so the real host is verified by this machine's CAs, here its own certificate."""
    async with elsewhere(tmp_path, tls=True) as (port, came):
        url = f"https://localhost:{port}"
        for trusted, status in (("localhost.pem", "200"), ("nothing.pem", "502")):
            (tmp_path / "nothing.pem").touch()
            monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / trusted))
            folder = tmp_path / trusted.partition(".")[0]
            async with intercepted(folder, Others.PASS, ["localhost=/policy"]) as there:
                there.serving.engine.default = lambda request: Turn("served")
                beside = await curl(there, f"{url}/policies?key=1", "-H", f"Authorization: Bearer {KEY}")
                assert beside.endswith(f"\n200 {status}"), beside
                json_body = ("-d", json.dumps(CHAT), "-H", "Content-Type: application/json")
                assert '"served"' in await curl(there, f"{url}/policy/v1/chat/completions", *json_body)
                assert not holding(folder, KEY)
    (request,) = came
    assert request["Authorization"] == f"Bearer {KEY}"


async def test_every_provider_and_a_host_of_ones_own(tmp_path: Path) -> None:
    where = {
        "https://api.openai.com/v1/chat/completions": "/v1/chat/completions",
        "https://openrouter.ai/api/v1/chat/completions": "/v1/chat/completions",
        "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions": "/chat/completions",
        "https://LLM.example.com:8443/gate/chat/completions?api-version=1": "/chat/completions",
        "http://llm.example.com/gate/v1/chat/completions": "/v1/chat/completions",
    }
    async with intercepted(tmp_path, maps=["llm.example.com=/gate"]) as there:
        there.serving.engine.default = lambda request: Turn("served")
        for url in where:
            said = await curl(there, url, "-d", json.dumps(CHAT), "-H", "Content-Type: application/json")
            assert '"served"' in said, said
        frames = await there.serving.opened(len(where))
        assert [frame.path for frame in frames] == list(where.values())


async def test_only_the_program_gets_in(tmp_path: Path) -> None:
    """Neither a stranger on this machine nor a key that is none opens a tunnel or a session."""
    async with intercepted(tmp_path, Others.PASS) as there:
        other = (await there.serving.control.open_session(run_id="run")).session_id
        for host in ("https://api.openai.com", "https://openrouter.ai/api"):
            said = await curl(there, f"{host}/s/{other}/v1/chat/completions", "-d", json.dumps(CHAT))
            assert said.endswith("\n200 401"), said
        assert not await there.serving.control.calls(other)
        address = f"127.0.0.1:{there.interception.port}"
        for credential in ("", "forge:guess@", f"guess:{there.ticket.api_key}@"):
            proxy = f"http://{credential}{address}"
            assert (await curl(there, "https://api.openai.com/v1/models", proxy=proxy)).endswith("\n407 000")
            assert (await curl(there, "http://example.com/", proxy=proxy)).endswith("\n000 407")
        proxy = f"http://{there.interception.token}:fs_{'a' * 26}_{'b' * 32}@{address}"
        said = await curl(there, "https://api.openai.com/v1/responses", "-d", "{}", proxy=proxy)
        assert said.endswith("\n200 401"), said


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
async def test_a_client_that_leaves_ends_the_call(tmp_path: Path, version: str) -> None:
    async with intercepted(tmp_path) as there:
        engine = there.serving.engine
        engine.script(Turn("one two three four"))
        engine.gate.shut()
        engine.gate.release(2)
        argv = ["curl", "-sS", "-N", version, "https://api.openai.com/v1/chat/completions"]
        argv += ["-d", json.dumps(CHAT | {"stream": True}), "-H", "Content-Type: application/json"]
        async with program(argv, there.env()) as running:
            await running.line("one")
        await asyncio.wait_for(engine.served[0].client_left.wait(), WAIT_S)


@pytest.mark.parametrize("version", ["--http1.1", "--http2"])
async def test_an_answer_that_breaks_off_breaks_off_for_the_program(tmp_path: Path, version: str) -> None:
    async with intercepted(tmp_path) as there:
        there.serving.engine.script(Turn("one two three four", fault=Fault(reset_after=900)))
        body = ("-d", json.dumps(CHAT | {"stream": True}), "-H", "Content-Type: application/json")
        said = await curl(there, "https://api.openai.com/v1/chat/completions", "-N", version, *body)
        assert '"one"' in said
        assert "curl: (" in said
        assert "[DONE]" not in said


async def test_a_request_is_streamed_up(tmp_path: Path) -> None:
    """The data plane refuses a key before the program has sent the last byte: nothing collects the body on the way."""
    async with intercepted(tmp_path) as there:
        credential = base64.b64encode(f"{there.interception.token}:fs_none".encode()).decode()
        reader, writer = await asyncio.open_connection("127.0.0.1", there.interception.port)
        writer.write(f"CONNECT api.openai.com:443 HTTP/1.1\r\nProxy-Authorization: Basic {credential}\r\n\r\n".encode())
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(ssl.create_default_context(cafile=str(there.ca)), server_hostname="api.openai.com")
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: api.openai.com\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head.encode() + b"x" * 500_000)
        async with asyncio.timeout(WAIT_S):
            assert b" 401 " in await reader.readline()
        writer.close()
