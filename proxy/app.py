"""The composition of the proxy: everything is made here, in order, and taken down in the reverse order.

``async with serve(config) as running`` works in-process, as a Ray actor, and under the command line alike. Ports are
taken first, so that a port in use shows at once; they begin to answer once the policy servers are probed. Several
processes behind one port are composed in ``workers/parent.py``, each of them from ``compose``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from forge.proxy.config import ProxyConfig, check_public
from forge.proxy.control.guard import guarded
from forge.proxy.control.health import HealthRoutes
from forge.proxy.control.pool import PoolRoutes
from forge.proxy.control.server import ControlPlane
from forge.proxy.deps import Deps
from forge.proxy.door.keys import Keys
from forge.proxy.door.server import DataPlane
from forge.proxy.ids import IdSource
from forge.proxy.listening import BACKLOG, listen, take_port, url_of
from forge.proxy.recording.decoding import decoder_process
from forge.proxy.recording.recorder import Recorder
from forge.proxy.serving import Serving, control_token, make_folder
from forge.proxy.sessions.archive import Archive
from forge.proxy.sessions.histories import Histories
from forge.proxy.sessions.history import Shared
from forge.proxy.sessions.registry import Registry
from forge.proxy.sessions.restore import Memory, remember
from forge.proxy.tasks import Tasks
from forge.proxy.upkeep import drain, upkeep
from forge.proxy.upstreams.client import EngineClient, read_key
from forge.proxy.upstreams.pool import Pool
from forge.proxy.upstreams.replicas import join, watch
from forge.proxy.vitals import Vitals
from forge.storage.journal import JournalWriter
from forge.storage.media import MediaStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(Serving):
    """A proxy that serves in this process."""

    deps: Deps


@asynccontextmanager
async def serve(config: ProxyConfig) -> AsyncIterator[Running]:
    """Raises ``ForgeError`` where it cannot start, with nothing left behind but the data directory."""
    async with AsyncExitStack() as stack:
        data_socket = take_port(stack, config.host, config.port, "proxy", "--port")
        control_socket = take_port(stack, config.control_host, config.control_port, "control plane", "--control-port")
        make_folder(config)
        deps, memory = await compose(config, stack)
        tasks = await stack.enter_async_context(Tasks())
        token, token_file = control_token(config)
        deps.ports = (data_socket.getsockname()[1], control_socket.getsockname()[1])
        for url in config.upstreams:
            await join(deps, url, start_s=config.limits.start_s, remembered=memory.policies)
        decoder = deps.vitals.decoder = decoder_process(config)
        deps.base_url = check_public(config.public_url) if config.public_url else url_of(config.host, data_socket)
        doors = DataPlane(deps).doors()
        stack.push_async_callback(doors.close)
        await doors.listen(data_socket, BACKLOG)
        routes = [*ControlPlane(deps, tasks).routes(), *PoolRoutes(deps, tasks).routes(), *HealthRoutes(deps).routes()]
        await listen(stack, guarded(config.control_host, token, routes), control_socket)
        running = Running(
            config=config,
            base_url=f"{deps.base_url}/v1",
            control_url=url_of(config.control_host, control_socket),
            control_token=token,
            control_token_file=token_file,
            failed=tasks.failed,
            deps=deps,
        )
        tasks.start(upkeep(deps), "upkeep")
        tasks.start(watch(deps), "watch")
        tasks.start(deps.vitals.run(lambda: deps.metrics.ended), "vitals")
        if decoder is not None:
            tasks.start(decoder.run(), "decoder")
        running.say_ready()
        try:
            yield running
        finally:
            last = await drain(deps)
            if decoder is not None and last is not None:
                await decoder.catch_up({config.writer: last}, config.limits.decoder_s)


async def compose(
    config: ProxyConfig, stack: AsyncExitStack, *, pool: Pool | None = None, session_ids: IdSource | None = None
) -> tuple[Deps, Memory]:
    """What serves calls in one process, with what its journal remembers. ``session_ids``: those of new sessions, where
    not all will do."""
    key = read_key(config.upstream_key_file)
    limits = config.limits
    journal = JournalWriter.open(config.data, config.writer, run_id=config.run_id, durability=config.durability.value)
    stack.callback(journal.close)
    memory = await asyncio.to_thread(remember, config.data, config.writer)
    recorder = Recorder(journal, limits.cut_bytes, limits.data_frame_bytes)
    keys, ids = Keys.of(config.data), IdSource()
    registry = Registry(
        recorder,
        keys,
        session_ids or ids,
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
        histories=Histories(),
        pool=pool or Pool(),
        client=client,
    )
    return deps, memory
