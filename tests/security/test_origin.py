"""Who a browser may speak for: names bent to this address (DNS rebinding), other origins, and ourselves as upstream."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from forge.proxy.app import serve
from forge.proxy.config import ProxyConfig, check_upstream
from forge.storage.errors import BadInput, Unavailable
from forge.storage.frames import Open
from tests.proxy.serving import Serving, serving
from tests.proxy.test_control import CONTROL_ROUTES
from tests.security.wire import CLOSE, LENGTH, port_of, request, said, statuses

FOREIGN = (
    "evil.example",
    "evil.example:8100",
    "127.0.0.1.evil.example",
    "a/b?x#",
    "127.0.0.1@evil",
    "localhost.evil:1",
)
OURS = (
    "127.0.0.1",
    "127.0.0.1:1",
    "localhost:8100",
    "LOCALHOST",
    "[::1]:8100",
    "x.localhost",
    "host.docker.internal:8100",
)
GET = ("/v1/models", "/", "/health", "/v1beta/models")


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_name_bent_to_this_address_gets_nothing(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path) as s:
        named = b"Host: " + host.encode() + b"\r\n"
        port = port_of(s.proxy.base_url)
        for path in GET:
            line = b"GET " + path.encode() + b" HTTP/1.1"
            answer = await said(port, request(CLOSE, line=line, host=named, body=b""))
            assert statuses(answer) in ([403], [400]), path
            assert b"policy" not in answer.partition(b"message")[0]
        assert statuses(await said(port, request(LENGTH, CLOSE, host=named))) in ([403], [400])
        assert not s.frames(Open)
        ticket = await s.control.open_session()
        key = b"Authorization: Bearer " + ticket.api_key.encode()
        if "/" not in host and "@" not in host:
            assert statuses(await said(port, request(LENGTH, CLOSE, key, host=named))) == [200], (
                "a key cannot be guessed"
            )


@pytest.mark.parametrize("host", OURS)
async def test_this_machines_own_names_are_served(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path) as s:
        named = b"Host: " + host.encode() + b"\r\n"
        assert statuses(await said(port_of(s.proxy.base_url), request(LENGTH, CLOSE, host=named))) == [200]


async def test_no_page_of_another_origin_reaches_the_control_plane(tmp_path: Path) -> None:
    """DELETE and PUT as well as POST and GET, also with the token."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        for method, path in CONTROL_ROUTES:
            for origin in (
                "https://evil.example",
                "null",
                "http://[",
                f"http://evil.example:{port_of(s.proxy.control_url)}",
            ):
                status, headers = await _control(s, method, path.replace("{id}", ticket.session_id), Origin=origin)
                assert status == 403, (method, path, origin)
                assert not [name for name in headers if name.lower().startswith("access-control")]
        for origin in ("http://localhost:3000", "http://127.0.0.1"):
            assert (await _control(s, "GET", "/capacity", Origin=origin))[0] == 200
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "DELETE"}
        assert (await _control(s, "OPTIONS", "/upstreams", **asked))[0] == 403
        assert len(await s.control.upstreams()) == 1
        assert (await s.control.session(ticket.session_id)).status == "open"


async def _control(s: Serving, method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
    headers |= {"Authorization": f"Bearer {s.proxy.control_token}"}
    async with s.http.request(method, s.proxy.control_url + path, json={}, headers=headers) as answer:
        return answer.status, dict(answer.headers)


async def test_a_proxy_is_never_its_own_policy_server(tmp_path: Path) -> None:
    """By any name of this machine, either port; and no other proxy of ours either: both would record the call."""
    async with serving(tmp_path) as s, serving(tmp_path / "other") as other:
        data, control = port_of(s.proxy.base_url), port_of(s.proxy.control_url)
        names = ["127.0.0.1", "localhost", "127.8.9.10", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", socket.gethostname()]
        for name in names:
            for port in (data, control):
                with pytest.raises(BadInput, match="this proxy itself"):
                    await s.control.add_upstream(f"http://{name}:{port}/v1", wait_s=0.1)
        with pytest.raises(BadInput, match="is a Forge proxy"):
            await s.control.add_upstream(other.proxy.base_url, wait_s=1)
        assert len(await s.control.upstreams()) == 1


async def test_a_proxy_that_is_told_to_serve_from_itself_does_not_start(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = ProxyConfig(
        data=tmp_path, run_id="r", upstreams=(f"http://localhost:{port}",), port=port, control_port=0, decoder=False
    )
    with pytest.raises(BadInput, match="this proxy itself"):
        async with serve(config):
            raise AssertionError("it serves")


@pytest.mark.parametrize(
    "url",
    [
        *("", "http://", "ftp://a", "file:///etc/passwd", "http://[", "http://a:99999", "http://a:b", "http://a\n/"),
        *("http://user:pw@a", "http://a?key=1", "http://a#x", "//a", "a:80", "http://\0", "gopher://a"),
        *("unix:x", "unix:"),
    ],
)
def test_what_is_no_policy_servers_url_is_refused(url: str) -> None:
    with pytest.raises(BadInput):
        check_upstream(url)


async def test_a_redirect_leads_nowhere(tmp_path: Path) -> None:
    """A server that sends a probe elsewhere is not up; ``test_faults`` says the same of calls."""
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with TestServer(_catch_all(elsewhere)) as target:

        async def moved(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(target.make_url("/latest/meta-data"))

        async with TestServer(_catch_all(moved)) as mover, serving(tmp_path) as s:
            with pytest.raises(Unavailable):
                await s.control.add_upstream(f"http://127.0.0.1:{mover.port}", wait_s=0.3)
    assert asked == []


def _catch_all(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app
