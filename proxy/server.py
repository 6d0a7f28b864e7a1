"""The data plane: what harnesses talk to. Routes, keys and probes at the door; a call then goes its own path.

Every refusal is in the shape of the route's dialect. A request here can name a session and open it with its key;
it can set no reward, reach no control route, and choose no upstream.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from aiohttp import web

from forge import __version__
from forge.proxy.accept import accept
from forge.proxy.bodies import read_body
from forge.proxy.counting import count
from forge.proxy.delivery import ClientLeft
from forge.proxy.deps import Deps
from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.gemini_models import gemini_model
from forge.proxy.keys import PREFIX
from forge.proxy.refusal import Refused
from forge.proxy.routes import GEMINI, Kind, Route, route
from forge.proxy.sessions import Full, Live
from forge.storage.journal import JournalFull

log = logging.getLogger(__name__)

KEY_HEADERS: Final = ("x-api-key", "api-key", "x-goog-api-key")
GOOGLE_HEADERS: Final = ("x-goog-api-key", "x-goog-api-client")
"""Google's clients send them, some of them to ``/v1/models`` too."""
HEAD_BYTES: Final = 32 << 10
"""Longest request line and header field: Codex puts JSON into one."""
OWNER: Final = "forge"


class DataPlane:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._calls = 0
        """Being read, held or served."""

    def runner(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.handle)
        return web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            max_line_size=HEAD_BYTES,
            max_field_size=HEAD_BYTES,
            shutdown_timeout=1.0,
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        where = route(request.rel_url.raw_path, request.rel_url.raw_query_string)
        try:
            return await self._handle(request, where)
        except Refused as refused:
            return self._refuse(where, refused)
        except BadRequest as bad:
            return self._refuse(where, Refused(400, bad.code, str(bad), param=bad.param))
        except JournalFull as full:
            log.error("call refused: %s", full.message)
            return self._refuse(where, Refused(503, "recorder_unavailable", "calls cannot be recorded now"))
        except Full as full:
            return self._refuse(where, Refused(503, "too_many_sessions", full.message))
        except ClientLeft as left:
            raise ConnectionResetError("the client left") from left
        except (ConnectionError, web.HTTPException):
            raise
        except Exception:
            # The process boundary: one request's failure is its own, and is logged.
            log.exception("request failed: path=%s", request.rel_url.raw_path)
            return self._refuse(where, Refused(500, "internal_error", "the proxy failed; its log says why"))

    async def _handle(self, request: web.Request, where: Route) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise Refused(426, "websocket_not_supported", "there are no websockets here; POST over plain HTTP")
        if where.kind is Kind.PROBE:
            return _probe(where.probe)
        if where.kind is Kind.DROP and request.method == "POST":
            return web.json_response({})
        if where.kind is Kind.MODELS and request.method in ("GET", "HEAD"):
            return self._models(request, where)
        if where.kind not in (Kind.CALL, Kind.COUNT):
            raise Refused(404, "unknown_path", f"nothing is at this path; the base URL is {_base_url(request)}")
        if request.method != "POST":
            raise Refused(405, "method_not_allowed", "calls are made by POST", headers={"Allow": "POST"})
        if where.dialect not in DIALECTS:
            raise Refused(501, "not_supported", f"{where.dialect} is not served yet; use /v1/chat/completions")
        if self._deps.draining:
            raise Refused(503, "draining", "this proxy is stopping")
        live, rule = self._door(request, where)
        limits = self._deps.config.limits
        if self._calls >= limits.calls:
            raise Refused(503, "too_many_calls", f"{limits.calls} calls are running")
        self._calls += 1
        try:
            body = await read_body(request, limits)
            if where.kind is Kind.COUNT:
                return await count(self._deps, where, body, live)
            return await accept(self._deps, request, where, body, live, rule)
        finally:
            self._calls -= 1

    def _door(self, request: web.Request, where: Route) -> tuple[Live | None, str]:
        """The session that the request's key opens, and the rule that found it; None where implicit ones may be."""
        key = _key(request)
        deps = self._deps
        if key is None:
            if where.session_id is not None or not deps.config.implicit_allowed:
                raise Refused(401, "key_missing", "this needs the session's own key as bearer token or x-api-key")
            return None, "implicit"
        session_id = deps.keys.session_of(key)
        if session_id is None:
            raise Refused(401, "key_invalid", "this is no key of this proxy; ask whoever opened the session")
        if where.session_id is not None and where.session_id != session_id:
            raise Refused(401, "key_mismatch", f"this key does not open session {where.session_id}")
        live = deps.registry.get(session_id)
        return live if live is not None else deps.registry.adopt(session_id, deps.policy()), "key"

    def _models(self, request: web.Request, where: Route) -> web.Response:
        """The one model there is. Codex (it sends ``client_version``) reads ``models``, everyone else ``data``."""
        replica = self._deps.pool.first()
        name = self._deps.config.model or (replica.abilities.model if replica else None) or "policy"
        if where.dialect == GEMINI or any(header in request.headers for header in GOOGLE_HEADERS):
            model = gemini_model(name, replica.abilities.max_model_len if replica else None)
            return _json({"models": [model]} if request.rel_url.raw_path.rstrip("/").endswith("models") else model)
        entry: dict[str, object] = {"id": name, "object": "model", "created": 0, "owned_by": OWNER}
        if replica is not None and replica.abilities.max_model_len is not None:
            entry["max_model_len"] = replica.abilities.max_model_len
        body: dict[str, object] = {"object": "list", "data": [entry]}
        if "client_version" in request.query:
            body["models"] = []
        parts = [part for part in request.rel_url.raw_path.split("/") if part]
        return _json(entry if parts[-2:-1] == ["models"] else body)

    def _refuse(self, where: Route, refused: Refused) -> web.Response:
        self._deps.metrics.refused.labels(refused.code).inc()
        dialect = DIALECTS.get(where.dialect, DIALECTS["chat"])
        body = dialect.error(refused.status, code=refused.code, message=refused.message, param=refused.param)
        return web.Response(status=refused.status, body=body, headers=refused.headers, content_type="application/json")


def _key(request: web.Request) -> str | None:
    """A key of ours, wherever the client put it; a foreign one is no key."""
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    given = [bearer.strip()] if scheme.lower() == "bearer" else []
    given += [request.headers.get(name, "") for name in KEY_HEADERS]
    given.append(request.query.get("key", ""))
    return next((key for key in given if key.startswith(PREFIX)), None)


def _base_url(request: web.Request) -> str:
    return f"http://{request.host}/v1"


def _probe(name: str) -> web.Response:
    answers: dict[str, object] = {
        "": {"name": OWNER, "version": __version__},
        "version": {"version": __version__},
        "api/version": {"version": __version__},
        "api/tags": {"models": []},
    }
    return _json(answers.get(name, {}))


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
