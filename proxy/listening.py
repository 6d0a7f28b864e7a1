"""The ports of a proxy: taken first, so that one in use shows at once; answering once everything behind is there."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack, ExitStack
from typing import Final

from aiohttp import web

from forge.storage.errors import Unavailable

BACKLOG: Final = 1024
ANY: Final = ("0.0.0.0", "::", "")  # noqa: S104  # a name to look for, not one to bind


def take_port(stack: AsyncExitStack | ExitStack, host: str, port: int, what: str, option: str) -> socket.socket:
    """Binds, without listening yet. Raises ``Unavailable``."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        stack.callback(taken.close)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        reason = error.strerror or str(error)
        hint = f"stop what listens there, or pass another {option} (0 takes a free one)"
        raise Unavailable(f"the {what} cannot listen on {host}:{port}: {reason}", hint) from error
    return taken


async def listen(stack: AsyncExitStack, runner: web.BaseRunner, taken: socket.socket) -> None:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.SockSite(runner, taken, backlog=BACKLOG).start()


def url_of(host: str, taken: socket.socket) -> str:
    name = "127.0.0.1" if host in ANY else f"[{host}]" if ":" in host else host
    return f"http://{name}:{taken.getsockname()[1]}"
