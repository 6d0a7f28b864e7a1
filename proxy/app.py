"""The composition of the proxy: everything is made here, in order, and taken down in the reverse order.

``async with serve(config) as running`` works in-process, as a Ray actor, and under the command line alike. Ports are
taken first, so that a port in use shows at once; they begin to answer once the policy servers are probed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web

from forge.proxy.config import TOKEN_FILE, ProxyConfig, check_public
from forge.proxy.control.health import HealthRoutes
from forge.proxy.control.pool import PoolRoutes
from forge.proxy.control.server import ControlPlane
from forge.proxy.deps import Deps
from forge.proxy.door.keys import Keys, private_file
from forge.proxy.door.server import DataPlane
from forge.proxy.ids import IdSource
from forge.proxy.recording.decoder import command
from forge.proxy.recording.decoding import DecoderProcess
from forge.proxy.recording.recorder import Recorder
from forge.proxy.sessions.archive import Archive
from forge.proxy.sessions.history import Shared
from forge.proxy.sessions.registry import Registry
from forge.proxy.sessions.restore import Memory, remember
from forge.proxy.tasks import Tasks
from forge.proxy.upkeep import drain, upkeep
from forge.proxy.upstreams.client import EngineClient, read_key
from forge.proxy.upstreams.pool import Pool
from forge.proxy.upstreams.replicas import join, watch
from forge.proxy.vitals import Vitals
from forge.storage.errors import BadInput, Unavailable
from forge.storage.files import write_whole
from forge.storage.journal import JournalWriter
from forge.storage.media import MediaStore
from forge.storage.names import CATALOG

TOKEN_BYTES: Final = 32
TOKEN_CHARS_MIN: Final = 16
BACKLOG: Final = 1024
ANY: Final = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Running:
    """A proxy that serves."""

    base_url: str
    """Of the data plane, with ``/v1``: what a harness is pointed at."""
    control_url: str
    control_token: str
    control_token_file: Path
    deps: Deps
    failed: asyncio.Event
    """A background job died: the proxy should be stopped."""

    def ready(self) -> dict[str, object]:
        """What the ready file says."""
        config = self.deps.config
        return {
            "pid": os.getpid(),
            "base_url": self.base_url,
            "control_url": self.control_url,
            "control_token_file": str(self.control_token_file.resolve()),
            "data": str(config.data.resolve()),
            "run_id": config.run_id,
        }


@asynccontextmanager
async def serve(config: ProxyConfig) -> AsyncIterator[Running]:
    """Raises ``ForgeError`` where it cannot start, with nothing left behind but the data directory."""
    async with AsyncExitStack() as stack:
        data_socket = _take_port(stack, config.host, config.port, "proxy", "--port")
        control_socket = _take_port(stack, config.control_host, config.control_port, "control plane", "--control-port")
        deps, memory = await _deps(config, stack)
        tasks = await stack.enter_async_context(Tasks())
        token, token_file = _token(config)
        deps.ports = (data_socket.getsockname()[1], control_socket.getsockname()[1])
        for url in config.upstreams:
            await join(deps, url, start_s=config.limits.start_s, remembered=memory.policies)
        decoder = deps.vitals.decoder = _decoder(config, deps)
        deps.base_url = check_public(config.public_url) if config.public_url else _url(config.host, data_socket)
        await _listen(stack, DataPlane(deps).runner(), data_socket)
        routes = [*PoolRoutes(deps, tasks).routes(), *HealthRoutes(deps).routes()]
        await _listen(stack, ControlPlane(deps, token, tasks).runner(routes), control_socket)
        control_url = _url(config.control_host, control_socket)
        running = Running(f"{deps.base_url}/v1", control_url, token, token_file, deps, tasks.failed)
        tasks.start(upkeep(deps), "upkeep")
        tasks.start(watch(deps), "watch")
        tasks.start(deps.vitals.run(lambda: deps.metrics.ended), "vitals")
        if decoder is not None:
            tasks.start(decoder.run(), "decoder")
        if config.ready_file is not None:
            _say_ready(config.ready_file, running)
        try:
            yield running
        finally:
            await drain(deps, decoder)


async def _deps(config: ProxyConfig, stack: AsyncExitStack) -> tuple[Deps, Memory]:
    key = read_key(config.upstream_key_file)
    try:
        config.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make the data directory {config.data}: {error.strerror}", "choose another"
        ) from error
    limits = config.limits
    journal = JournalWriter.open(config.data, config.writer, run_id=config.run_id, durability=config.durability.value)
    stack.callback(journal.close)
    memory = await asyncio.to_thread(remember, config.data, config.writer)
    recorder = Recorder(journal, limits.cut_bytes, limits.data_frame_bytes)
    keys, ids = Keys.of(config.data), IdSource()
    registry = Registry(
        recorder,
        keys,
        ids,
        Archive(config.data, config.writer),
        run_id=config.run_id,
        limit=limits.sessions,
        kept=limits.closed_sessions,
    )
    registry.restore(memory.sessions, memory.used, complete=memory.complete, doubtful=memory.doubtful)
    recorder.positions.update({s: p for s, p in memory.positions.items() if s in recorder.positions})
    client = EngineClient(key=key, connect_s=limits.connect_s, silence_s=limits.silence_s)
    await stack.enter_async_context(client)
    deps = Deps(
        config=config,
        recorder=recorder,
        media=MediaStore(config.data),
        keys=keys,
        ids=ids,
        registry=registry,
        vitals=Vitals(config, recorder, registry),
        shared=Shared(),
        pool=Pool(),
        client=client,
    )
    return deps, memory


def _decoder(config: ProxyConfig, deps: Deps) -> DecoderProcess | None:
    if not config.decoder:
        return None

    keep = ["--journal-keep", config.journal_keep] if config.journal_keep is not None else []
    form = ["--log-format", config.log_format.value]
    env = {}
    if config.catalog is not None:
        from forge.storage.catalog import engine_of

        engine_of(config.catalog).dispose()  # refused here, not by a decoder that would be started again and again
        # Not an argument: a URL may hold a password, and everyone on this machine sees arguments.
        env[CATALOG] = config.catalog
    return DecoderProcess([*command(config.data), *keep, *form], config.data, deps.recorder, env)


def _token(config: ProxyConfig) -> tuple[str, Path]:
    path = config.control_token_file or config.data / TOKEN_FILE
    token = private_file(path, secrets.token_urlsafe(TOKEN_BYTES).encode()).decode(errors="replace").strip()
    if len(token) < TOKEN_CHARS_MIN or not token.isprintable():
        raise BadInput(f"the control token in {path} is too short or no text", f"remove {path}; a new one is made")
    return token, path


def _take_port(stack: AsyncExitStack, host: str, port: int, what: str, option: str) -> socket.socket:
    """Binds, without listening yet."""
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


async def _listen(stack: AsyncExitStack, runner: web.BaseRunner, taken: socket.socket) -> None:
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.SockSite(runner, taken, backlog=BACKLOG).start()


def _url(host: str, taken: socket.socket) -> str:
    name = "127.0.0.1" if host in ANY else f"[{host}]" if ":" in host else host
    return f"http://{name}:{taken.getsockname()[1]}"


def _say_ready(path: Path, running: Running) -> None:
    said = msgspec.json.encode(running.ready())
    write_whole(path, lambda temporary: temporary.write_bytes(said))
