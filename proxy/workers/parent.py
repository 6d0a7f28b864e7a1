"""The composition of a proxy with several workers: what is one for all of them is here, what serves a call is in them.

Owns the data plane's port (the workers accept on it), the control plane, the policy servers with their health and
publications, the decoder, and the look at the disk. Records nothing itself: a session's frames are written where its
calls are served.
"""

from __future__ import annotations

import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from forge.proxy.config import ProxyConfig, check_public
from forge.proxy.control.guard import guarded
from forge.proxy.control.pool import PoolRoutes
from forge.proxy.door.keys import Keys
from forge.proxy.listening import listen, take_port, url_of
from forge.proxy.recording.decoding import decoder_process
from forge.proxy.serving import Serving, control_token, make_folder
from forge.proxy.tasks import Tasks
from forge.proxy.upstreams.client import EngineClient, read_key
from forge.proxy.upstreams.pool import Replica
from forge.proxy.upstreams.replicas import join, watch
from forge.proxy.workers.child import WorkerProcess
from forge.proxy.workers.crew import Crew
from forge.proxy.workers.desk import SessionRoutes, Workers
from forge.proxy.workers.disk import DiskWatch
from forge.proxy.workers.home import Homes
from forge.proxy.workers.leading import LeadingPool
from forge.proxy.workers.messages import Begin, Down, plain
from forge.proxy.workers.overview import Overview
from forge.storage.errors import BadInput


@dataclass(slots=True)
class Parent:
    """What the parent's routes share."""

    config: ProxyConfig
    pool: LeadingPool
    client: EngineClient
    ports: tuple[int, ...]
    base_url: str
    """Of the data plane, without ``/v1``."""

    def note_policy(self, replica: Replica) -> None:
        """Every worker's journal will say it, as it learns it."""
        self.pool.published[replica.url] = replica.policy


@asynccontextmanager
async def serve(config: ProxyConfig) -> AsyncIterator[Serving]:
    """Raises ``ForgeError`` where it cannot start, with nothing left behind but the data directory."""
    if sys.platform != "linux":
        raise BadInput("connections change their process on Linux alone", "leave --workers away")
    async with AsyncExitStack() as stack:
        data_socket = take_port(stack, config.host, config.port, "proxy", "--port")
        control_socket = take_port(stack, config.control_host, config.control_port, "control plane", "--control-port")
        make_folder(config)
        token, token_file = control_token(config)
        keys, decoder = Keys.of(config.data), decoder_process(config)
        parent = await _parent(config, data_socket, control_socket, stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forge-", ignore_cleanup_errors=True)))
        tasks = await stack.enter_async_context(Tasks())
        crew = await _crew(parent, token, folder, data_socket, tasks, stack)
        http = await stack.enter_async_context(Workers(folder, token))
        homes = Homes(config.workers)
        homes.learn(crew.strays)
        disk = DiskWatch(config, parent.pool)
        base_url = f"{parent.base_url}/v1"
        routes = [
            *SessionRoutes(http, crew, homes, keys).routes(),
            *PoolRoutes(parent, tasks).routes(),
            *Overview(parent, base_url, crew, http, decoder, disk).routes(),
        ]
        await listen(stack, guarded(config.control_host, token, routes), control_socket)
        serving = Serving(
            config=config,
            base_url=base_url,
            control_url=url_of(config.control_host, control_socket),
            control_token=token,
            control_token_file=token_file,
            failed=tasks.failed,
        )
        tasks.start(watch(parent), "watch")
        tasks.start(disk.run(), "disk")
        if decoder is not None:
            tasks.start(decoder.run(), "decoder")
        serving.say_ready()
        try:
            yield serving
        finally:
            cuts = await crew.drain(config.limits.drain_s)
            if decoder is not None:
                await decoder.catch_up(cuts, config.limits.decoder_s)


async def _parent(
    config: ProxyConfig, data_socket: socket.socket, control_socket: socket.socket, stack: AsyncExitStack
) -> Parent:
    limits = config.limits
    client = EngineClient(
        key=read_key(config.upstream_key_file), connect_s=limits.connect_s, silence_s=limits.silence_s
    )
    return Parent(
        config=config,
        pool=LeadingPool(),
        client=await stack.enter_async_context(client),
        ports=(data_socket.getsockname()[1], control_socket.getsockname()[1]),
        base_url=check_public(config.public_url) if config.public_url else url_of(config.host, data_socket),
    )


async def _crew(
    parent: Parent, token: str, folder: Path, listener: socket.socket, tasks: Tasks, stack: AsyncExitStack
) -> Crew:
    """All workers, serving from the configured policy servers."""
    config, pool = parent.config, parent.pool

    def met_down(said: Down) -> None:
        if (replica := pool.get(said.url)) is not None:
            pool.down(replica, said.reason)
            tasks.start(pool.known(), "known")

    begins = [_begin(parent, number, token, folder) for number in range(config.workers)]
    crew = pool.crew = Crew([WorkerProcess(begin, listener, met_down) for begin in begins], pool.says, tasks)
    stack.push_async_callback(crew.end)
    pool.published = await crew.start()
    for url in config.upstreams:
        await join(parent, url, start_s=config.limits.start_s, remembered=pool.published)
    await crew.serve()
    return crew


def _begin(parent: Parent, number: int, token: str, folder: Path) -> Begin:
    config = replace(
        parent.config,
        writer=parent.config.writer + number,
        workers=1,
        upstreams=(),
        decoder=False,
        catalog=None,
        disk_budget=None,
        ready_file=None,
    )
    return Begin(
        config=plain(config),
        number=number,
        workers=parent.config.workers,
        token=token,
        base_url=parent.base_url,
        folder=str(folder),
        ports=parent.ports,
    )
