"""The data plane: what harnesses talk to. Routes, keys and probes at the door; a call then goes its own path.

Every refusal is in the shape of the route's dialect. A request here can name a session and open it with its key;
it can set no reward, reach no control route, and choose no upstream.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec

from forge.proxy.calls.accept import accept
from forge.proxy.deps import Deps
from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.gemini_models import gemini_model
from forge.proxy.door import discovery
from forge.proxy.door.bodies import read_body
from forge.proxy.door.connection import Elsewhere
from forge.proxy.door.counting import count
from forge.proxy.door.discovery import ModelCard
from forge.proxy.door.doors import Doors
from forge.proxy.door.keys import PREFIX
from forge.proxy.door.origin import known_host, known_origin
from forge.proxy.door.outlet import JSON, Gone
from forge.proxy.door.refusal import Refused
from forge.proxy.door.request import Request
from forge.proxy.door.routes import GEMINI, Kind, Route, route
from forge.proxy.door.strict import check_head
from forge.proxy.sessions.live import Live
from forge.proxy.sessions.registry import Full, Unknown
from forge.storage.journal import JournalFull

log = logging.getLogger(__name__)

KEY_HEADERS: Final = ("x-api-key", "api-key", "x-goog-api-key")
GOOGLE_HEADERS: Final = ("x-goog-api-key", "x-goog-api-client")
"""Google's clients send them, some of them to ``/v1/models`` too."""
AGAIN: Final = "X-Should-Retry"
"""The official SDKs ask again at a 409 unless it says no: a closed session stays closed."""
ENDS: Final = frozenset({"websocket_not_supported", "http_version", "no_tunnel", "bad_framing"})
"""Refusals after which a connection ends: what follows on it may be no request."""
LOOK: Final = ("GET", "HEAD", "POST", "OPTIONS")
METHODS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.CALL: ("POST", "OPTIONS"),
    Kind.COUNT: ("POST", "OPTIONS"),
    Kind.MODELS: ("GET", "HEAD", "OPTIONS"),
    Kind.PROBE: LOOK,
    Kind.DROP: ("POST", "OPTIONS"),
}


class DataPlane:
    def __init__(self, deps: Deps, elsewhere: Elsewhere | None = None) -> None:
        """``elsewhere``: asked of every request before it is served."""
        self._deps = deps
        self._elsewhere = elsewhere
        self._calls = 0
        """Being read, held or served."""

    def doors(self) -> Doors:
        """In the running loop: where connections come in."""
        return Doors(self.handle, self._deps.config.limits, self._elsewhere)

    async def handle(self, request: Request) -> None:
        """Answers the request. Raises ``Gone`` where that cannot be done any more."""
        where = request.head.where or route(request.path, request.head.query_string)
        try:
            if request.head.where is not None or self._passes(request, where):
                await self._call(request, where)
        except Refused as refused:
            self._refuse(request, where, refused)
        except BadRequest as bad:
            self._refuse(request, where, Refused(400, bad.code, str(bad), param=bad.param))
        except JournalFull as full:
            log.error("call refused: %s", full.message)
            self._refuse(request, where, Refused(503, "recorder_unavailable", "calls cannot be recorded now"))
        except Unknown as unknown:
            self._refuse(request, where, Refused(409, "session_unknown", f"{unknown.message}: {unknown.hint}"))
        except Full as full:
            self._refuse(request, where, Refused(503, "too_many_sessions", full.message))
        except Gone:
            raise
        except Exception as error:
            # The process boundary: one request's failure is its own, and is logged.
            log.exception("request failed: path=%s", request.path)
            if request.outlet.begun:
                raise Gone from error  # a second head would be bytes in the middle of an answer
            self._refuse(request, where, Refused(500, "internal_error", "the proxy failed; its log says why"))

    def _passes(self, request: Request, where: Route) -> bool:
        """Whether the request may be a call, as far as its head goes; else it is answered, or ``Refused`` raised."""
        check_head(request)
        if not known_host(request, self._deps.config.host) and key_of(request) is None:
            raise Refused(403, "bad_host", "without a session's key this is served to this machine's own names only")
        if request.headers.get("Upgrade", "").lower() == "websocket":
            raise Refused(426, "websocket_not_supported", "there are no websockets here; POST over plain HTTP")
        if where.kind is Kind.UNKNOWN:
            raise Refused(404, "unknown_path", f"nothing is at this path; the base URL is {_base_url(request, where)}")
        allowed = METHODS[where.kind]
        if request.method == "OPTIONS":
            # No Access-Control header: pages of other origins may not call.
            request.outlet.answer(204, headers={"Allow": ", ".join(allowed)})
            return False
        if request.method not in allowed:
            message = f"{request.method} is not for this path; use {allowed[0]}"
            raise Refused(405, "method_not_allowed", message, headers={"Allow": ", ".join(allowed)})
        match where.kind:
            case Kind.PROBE:
                _give(request, discovery.probe(where.probe))
            case Kind.DROP:
                _give(request, {})
            case Kind.MODELS:
                _give(request, self._models(request, where))
            case _:
                request.head.where = where
                return True
        return False

    async def _call(self, request: Request, where: Route) -> None:
        if self._deps.draining:
            raise Refused(503, "draining", "this proxy is stopping")
        live, rule = await self._door(request, where)
        limits = self._deps.config.limits
        if self._calls >= limits.calls:
            raise Refused(503, "too_many_calls", f"{limits.calls} calls are running")
        self._calls += 1
        try:
            body = await read_body(request, limits)
            if where.kind is Kind.COUNT:
                request.outlet.answer(200, await count(self._deps, where, body, live))
            else:
                await accept(self._deps, request, where, body, live, rule)
        finally:
            self._calls -= 1

    async def _door(self, request: Request, where: Route) -> tuple[Live | None, str]:
        """The session that the request's key opens, and the rule that found it; None where implicit ones may be."""
        key = key_of(request)
        deps = self._deps
        if key is None:
            if where.session_id is not None or not deps.config.implicit_allowed:
                raise Refused(401, "key_missing", "this needs the session's own key as bearer token or x-api-key")
            if not known_origin(request):
                raise Refused(403, "foreign_origin", "web pages of other origins may not call without a session's key")
            return None, "implicit"
        session_id = deps.keys.session_of(key)
        if session_id is None:
            raise Refused(401, "key_invalid", "this is no key of this proxy; ask whoever opened the session")
        if where.session_id is not None and where.session_id != session_id:
            raise Refused(401, "key_mismatch", f"this key does not open session {where.session_id}")
        live = await deps.registry.find(session_id)
        return live if live is not None else await deps.registry.adopt(session_id, deps.policy()), "key"

    def _models(self, request: Request, where: Route) -> dict[str, Any]:
        replica = self._deps.pool.first()
        name = self._deps.config.model or (replica.abilities.model if replica else None) or "policy"
        card = ModelCard(where.probe or name, replica.abilities.max_model_len if replica else None)
        if where.dialect == GEMINI or any(header in request.headers for header in GOOGLE_HEADERS):
            model = gemini_model(card.name, card.context)
            return model if where.probe else {"models": [model]}
        codex = "client_version" in request.query()
        return card.entry() if where.probe else discovery.model_list(card, codex=codex)

    def _refuse(self, request: Request, where: Route, refused: Refused) -> None:
        self._deps.metrics.refused[refused.code] += 1
        body = DIALECTS[where.dialect].error(
            refused.status, code=refused.code, message=refused.message, param=refused.param
        )
        headers = {**JSON, **refused.headers}
        if refused.status == 409:
            headers[AGAIN] = "false"
        request.outlet.answer(refused.status, body, headers, close=refused.code in ENDS)


def key_of(request: Request) -> str | None:
    """A key of ours, wherever the client put it; a foreign one is no key."""
    head = request.head
    if head.key is None:
        head.key = _key_of(request) or ""
    return head.key or None


def _key_of(request: Request) -> str | None:
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    given = [bearer.strip()] if scheme.lower() == "bearer" else []
    given += [request.headers.get(name, "") for name in KEY_HEADERS]
    given += request.query().get("key", ())
    return next((key for key in given if key.startswith(PREFIX)), None)


def _base_url(request: Request, where: Route) -> str:
    session = f"/s/{where.session_id}" if where.session_id is not None else ""
    return f"http://{request.host}{session}/v1"


def _give(request: Request, value: object) -> None:
    request.outlet.answer(200, msgspec.json.encode(value))
