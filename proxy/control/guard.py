"""What stands before every control route: head, host, origin and token; after it, errors become JSON.

Owns who may ask, and the shape of a refusal; what the routes do is theirs. A session key opens nothing here.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Middleware

from forge.proxy.control.wire import error
from forge.proxy.door.origin import known_host, known_origin
from forge.proxy.door.refusal import Refused
from forge.proxy.door.strict import check_head
from forge.proxy.sessions.registry import Full
from forge.storage.errors import BadInput, ForgeError, Unavailable
from forge.storage.journal import JournalFull

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_BYTES: Final = 4 << 20
OPEN_ROUTES: Final = ("/healthz", "/readyz")
STATUS: Final[tuple[tuple[type[ForgeError], int, str], ...]] = (
    (Full, 429, "no_capacity"),
    (JournalFull, 503, "recorder_unavailable"),
    (BadInput, 400, "bad_request"),
    (Unavailable, 503, "unavailable"),
    (ForgeError, 409, "refused"),
)


def guarded(host: str, token: str, routes: Sequence[web.RouteDef]) -> web.AppRunner:
    """The control plane that listens on ``host``."""
    app = web.Application(client_max_size=BODY_BYTES, middlewares=[_guard(host, f"Bearer {token}".encode())])
    app.add_routes(routes)
    return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)


def _guard(host: str, token: bytes) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        return _refusal(request, host, token) or await _answer(request, handler)

    return guard


def _refusal(request: web.Request, host: str, token: bytes) -> web.Response | None:
    try:
        check_head(request)
    except Refused as refused:
        answer = error(refused.status, refused.code, refused.message)
        answer.force_close()
        return answer
    if not known_host(request, host):
        return error(403, "bad_host", "this name is not served here")
    if not known_origin(request):
        return error(403, "foreign_origin", "web pages of other origins may not ask here")
    # The matched route decides, never the path as text.
    resource = request.match_info.route.resource
    if resource is None or resource.canonical not in OPEN_ROUTES:
        given = request.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(given, token):
            return error(401, "token_invalid", "this needs the control token as bearer token")
    return None


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler's; every failure is JSON."""
    try:
        return await handler(request)
    except web.HTTPException as problem:
        return error(problem.status, problem.reason.lower().replace(" ", "_"), problem.text or problem.reason)
    except ForgeError as problem:
        status, code = next((status, code) for kind, status, code in STATUS if isinstance(problem, kind))
        return error(status, code, problem.message, problem.hint)
