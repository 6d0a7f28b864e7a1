"""Running the server as a process: threads, port, ready file, and a clean end on SIGTERM.

Not obvious: OpenMP's threads must sleep, not spin, between kernels. On two idle cores spinning is 20-40 % faster (68
tokens a second against 48-58, eight streams), but on cores shared with a proxy and harnesses a spinning thread waits
out other programs' time slices at every kernel, up to 20 times slower. libgomp reads the setting once, when torch is
loaded, so this module sets it and torch comes in afterwards; OMP_WAIT_POLICY=active in the environment overrides it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import closing
from pathlib import Path

from aiohttp import web

from forge.policy.options import Options
from forge.storage.errors import Unavailable

MAX_THREADS = 8
"""More threads than this do not help a model this small."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, before minutes are spent on the model."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen()
    except OSError as error:
        sock.close()
        reason = error.strerror or str(error)
        raise Unavailable(f"cannot listen on {host}:{port}: {reason}", "give another --port, or 0 for any") from error
    return sock


def serve(sock: socket.socket, options: Options, ready_file: Path | None) -> None:
    """Load the model and serve until SIGTERM or SIGINT."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(min(MAX_THREADS, len(os.sched_getaffinity(0))))
    from forge.policy.server import DRAIN_SECONDS, PolicyServer

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    with closing(PolicyServer(options)) as server:
        asyncio.run(_run(server.app(), sock, options, ready_file, DRAIN_SECONDS))


async def _run(
    app: web.Application, sock: socket.socket, options: Options, ready_file: Path | None, drain: float
) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=drain)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        host, port = sock.getsockname()[:2]
        base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        if ready_file is not None:
            _announce(ready_file, {"pid": os.getpid(), "base_url": base, "model": options.name})
        print(f"policy {options.name} serves on {base}", file=sys.stderr, flush=True)
        await ended.wait()
    finally:
        await runner.cleanup()
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)


def _announce(path: Path, state: dict[str, object]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(path)
