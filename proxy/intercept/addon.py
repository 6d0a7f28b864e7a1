"""The addon that mitmdump runs: requests to the providers' hosts go to the data plane, others pass or are refused.

It runs in mitmproxy's own Python, so it imports only that and the standard library, and mitmproxy only where it is
used. What to do it reads from the file named by the option ``forge``. The non-obvious facts: a program proves itself by
its proxy URL, whose user is this process's token and whose password is its session's key, so one mitmdump serves many
sessions and no stranger on the machine; and keys that a program sends to its provider are taken out before anything
else sees the request.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from mitmproxy.addonmanager import Loader
    from mitmproxy.connection import Client
    from mitmproxy.http import Headers, HTTPFlow, Response

log = logging.getLogger(__name__)

SECRET_HEADERS: Final = ("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie")
"""Where programs put their provider's key."""
SECRET_QUERY: Final = frozenset({"key", "access_token", "api_key", "api-key"})
PROXY_KEY: Final = "proxy-authorization"
SILENCE_S: Final = 3600
"""mitmproxy ends connections that are silent for 10 minutes; how long a call may take is the data plane's to say."""
NAMED_MAX: Final = 1000
"""Refused hosts that are told in the log, each once."""


class Plan(NamedTuple):
    """What the file says."""

    upstream: str
    """The data plane: ``http://HOST:PORT``."""
    token: str
    hosts: list[tuple[str, str]]
    """Host and the prefix of its paths that are the policy's; longest prefix first."""
    block: bool
    ready: str
    """File to write the port to."""


def read_plan(path: str) -> Plan:
    plan = Plan(**json.loads(Path(path).read_text()))
    hosts = sorted(((host, prefix) for host, prefix in plan.hosts), key=lambda each: -len(each[1]))
    return plan._replace(hosts=hosts)


def session_key(token: str, header: str) -> str | None:
    """The password of a Basic credential whose user is ``token``."""
    scheme, _, credential = header.partition(" ")
    try:
        user, _, key = base64.b64decode(credential, validate=True).decode().partition(":")
    except ValueError:
        return None
    right = scheme.lower() == "basic" and hmac.compare_digest(user.encode(), token.encode())
    return key if right and key else None


def inner_path(plan: Plan, host: str, path: str) -> str | None:
    """The data plane's path for a request; None where it is not the policy's."""
    for name, prefix in plan.hosts:
        if name == host.lower() and (path + "/").replace("?", "/", 1).startswith(prefix + "/"):
            return without_keys(path[len(prefix) :])
    return None


def without_keys(path: str) -> str:
    """``path`` without the members of its query that hold keys; the others stay as they are."""
    before, mark, query = path.partition("?")
    kept = [each for each in query.split("&") if each.partition("=")[0].lower() not in SECRET_QUERY]
    return before + (mark + "&".join(kept) if any(kept) else "")


class Interception:
    def __init__(self) -> None:
        self._plan = Plan("", "", [], True, "")
        self._keys: dict[str, str] = {}
        """Session keys of the clients that have a tunnel, by connection."""
        self._named: set[str] = set()

    # What mitmproxy calls

    def load(self, loader: Loader) -> None:
        from mitmproxy import ctx
        from mitmproxy.proxy import server

        loader.add_option("forge", str, "", "File that says what to do.")
        if "tcp_timeout" in ctx.options:
            ctx.options.update(tcp_timeout=SILENCE_S)
        else:  # mitmproxy 11
            server.TCP_TIMEOUT = SILENCE_S

    def configure(self, updated: set[str]) -> None:
        from mitmproxy import ctx

        if "forge" in updated and ctx.options.forge:
            self._plan = read_plan(ctx.options.forge)

    def running(self) -> None:
        """Say the port; by rename, so that whoever waits reads a whole file."""
        from mitmproxy import ctx

        addresses = ctx.master.addons.get("proxyserver").listen_addrs()
        part = Path(self._plan.ready + ".part")
        part.write_text(json.dumps({"port": addresses[0][1], "pid": os.getpid()}))
        part.rename(self._plan.ready)

    def http_connect(self, flow: HTTPFlow) -> None:
        key = self._key(flow)
        host = flow.request.host
        if key is None:
            flow.response = unknown_program()
        elif self._plan.block and all(name != host.lower() for name, _ in self._plan.hosts):
            flow.response = self._refusal(host, "")
        else:
            self._keys[flow.client_conn.id] = key

    def client_disconnected(self, client: Client) -> None:
        self._keys.pop(client.id, None)

    def requestheaders(self, flow: HTTPFlow) -> None:
        request = flow.request
        key = self._key(flow)
        path = inner_path(self._plan, request.host, request.path)
        if key is None:
            flow.response = unknown_program()
        elif path is not None:
            self._to_data_plane(flow, path, key)
        elif self._plan.block:
            flow.response = self._refusal(request.host, request.path.partition("?")[0])
        else:
            request.stream = True

    def responseheaders(self, flow: HTTPFlow) -> None:
        if flow.response is not None:
            flow.response.stream = bool(flow.request.stream)

    # What it does

    def _key(self, flow: HTTPFlow) -> str | None:
        """The session's key, from the tunnel's begin or from this request, where it is taken out."""
        given: Headers = flow.request.headers
        key = session_key(self._plan.token, given.pop(PROXY_KEY, ""))
        return key or self._keys.get(flow.client_conn.id)

    def _to_data_plane(self, flow: HTTPFlow, path: str, key: str) -> None:
        request = flow.request
        upstream = urlsplit(self._plan.upstream)
        for name in SECRET_HEADERS:
            request.headers.pop(name, None)
        request.headers["authorization"] = f"Bearer {key}"
        request.scheme, request.host, request.port = "http", upstream.hostname, upstream.port
        request.path = path if path.startswith("/") else "/" + path
        request.stream = True

    def _refusal(self, host: str, path: str) -> Response:
        where = host + path
        if where not in self._named and len(self._named) < NAMED_MAX:
            self._named.add(where)
            log.warning("blocked: %s", where)
        return answer(
            403,
            "host_blocked",
            f"forge blocks {where}: it is not mapped to the policy; next: --others pass lets such requests through, "
            f"--map {host} sends them to the policy",
        )


def unknown_program() -> Response:
    response = answer(407, "proxy_key_invalid", "this proxy serves only the program that forge started")
    response.headers["proxy-authenticate"] = 'Basic realm="forge"'
    return response


def answer(status: int, code: str, message: str) -> Response:
    from mitmproxy.http import Response

    body: dict[str, Any] = {"error": {"message": message, "type": "forge_intercept", "code": code}}
    return Response.make(status, json.dumps(body), {"content-type": "application/json"})


addons = [Interception()]
