"""``forge proxy``: the recording reverse proxy that a harness's base URL points at."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from forge.option_values import json_object, size_in_bytes
from forge.proxy import logs, process
from forge.proxy.config import Durability, ProxyConfig, Record
from forge.proxy.serving import Serving
from forge.proxy.sessions.spec import HistoryMode
from forge.storage.errors import ForgeError
from forge.storage.names import CATALOG


class Engine(StrEnum):
    AUTO = "auto"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    EMBEDDED = "embedded"
    OPENAI = "openai"


EXAMPLE = "Example: forge proxy --upstream http://127.0.0.1:8000 --data ./data"


Data = Annotated[Path, typer.Option(help="Directory of the journal and the dataset; made if it is not there.")]
Upstream = Annotated[
    list[str] | None,
    typer.Option(
        help="URL of a policy server, or unix:/path; repeat it for more. None: add them by the control plane."
    ),
]
Host = Annotated[str, typer.Option(help="Address that harnesses reach.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port that harnesses reach; 0 takes a free one.")]
PublicUrl = Annotated[
    str | None, typer.Option(help="URL that harnesses reach it by, where HOST:PORT is not: http://proxy:8100.")
]
ControlHost = Annotated[str, typer.Option(help="Address of the control plane.")]
ControlPort = Annotated[int, typer.Option(min=0, max=65535, help="Port of the control plane; 0 takes a free one.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="The control plane's token; made if it is not there. [DATA/control.token]")
]
KeyFile = Annotated[Path | None, typer.Option(help="File with the key of the policy servers.")]
Kind = Annotated[Engine, typer.Option(help="Kind of the policy servers.")]
Strictness = Annotated[Record, typer.Option(help="strict refuses a policy server whose calls could not train.")]
Durable = Annotated[
    Durability, typer.Option(help="What a reply waits for: process survives kill -9, disk a power cut too.")
]
Run = Annotated[str | None, typer.Option(help="Name of the run in the dataset. [proxy-DATE-TIME]")]
Model = Annotated[str | None, typer.Option(help="Model name to send. [the first one it serves]")]
Sampling = Annotated[str | None, typer.Option(help='Sampling sent with every call, as JSON: {"temperature": 1.0}.')]
History = Annotated[
    HistoryMode, typer.Option(help="keep-reasoning: give back the thinking that a harness drops; a restart forgets it.")
]
Implicit = Annotated[
    bool, typer.Option("--implicit/--no-implicit", help="Record calls without a session key too (loopback only).")
]
EndSessions = Annotated[
    bool, typer.Option("--end-sessions", help="When it stops, close the run's open sessions as interrupted.")
]
Decoding = Annotated[
    bool, typer.Option("--decoder/--no-decoder", help="Turn the journal into Parquet while it is written.")
]
Writer = Annotated[int, typer.Option(help="Its journal in DATA: proxies that share DATA have each another one.")]
Workers = Annotated[
    int,
    typer.Option(min=1, help="Processes that serve calls, at most one per core; their journals are WRITER and after."),
]
Catalog = Annotated[
    str | None,
    typer.Option(help="SQL index: postgresql://HOST/NAME. [DATA/catalog.db]", envvar=CATALOG),
]
Keep = Annotated[str | None, typer.Option(help="Decoded journal to keep, e.g. 4G.")]
Budget = Annotated[
    str | None, typer.Option(help="Size of DATA, e.g. 200G, at which new sessions are refused; open ones go on.")
]
LogForm = Annotated[logs.LogFormat, typer.Option(help="json: one object per line, with session_id and call_id.")]
ReadyFile = Annotated[Path | None, typer.Option(help="Write URLs and pid here, as JSON, once it serves.")]


def register(app: typer.Typer) -> None:
    app.command(name="proxy", epilog=EXAMPLE)(proxy)


def proxy(
    data: Data = Path("data"),
    upstream: Upstream = None,
    host: Host = "127.0.0.1",
    port: Port = 8100,
    public_url: PublicUrl = None,
    control_host: ControlHost = "127.0.0.1",
    control_port: ControlPort = 8101,
    control_token_file: TokenFile = None,
    upstream_key_file: KeyFile = None,
    engine: Kind = Engine.AUTO,
    record: Strictness = Record.STRICT,
    durability: Durable = Durability.PROCESS,
    run: Run = None,
    model: Model = None,
    sampling: Sampling = None,
    history: History = HistoryMode.AS_SENT,
    implicit: Implicit = True,
    end_sessions: EndSessions = False,
    decoder: Decoding = True,
    journal_keep: Keep = None,
    disk_budget: Budget = None,
    writer: Writer = 0,
    workers: Workers = 1,
    catalog: Catalog = None,
    log_format: LogForm = logs.LogFormat.TEXT,
    ready_file: ReadyFile = None,
) -> None:
    """Serve harnesses from policy servers and record every call exactly.

    Point a harness's base URL at http://HOST:PORT/v1. Calls without a session key make implicit sessions;
    sessions with keys are opened over the control plane, which needs the token of --control-token-file.
    """
    if journal_keep is not None:  # here, not in the decoder, which would be started again and again
        size_in_bytes("--journal-keep", journal_keep)
    logs.configure(log_format)
    config = ProxyConfig(
        data=data,
        run_id=run or time.strftime("proxy-%Y%m%d-%H%M%S"),
        upstreams=tuple(upstream or ()),
        host=host,
        port=port,
        public_url=public_url,
        control_host=control_host,
        control_port=control_port,
        control_token_file=control_token_file,
        upstream_key_file=upstream_key_file,
        engine=engine.value,
        record=record,
        durability=durability,
        model=model,
        sampling=None if sampling is None else json_object("--sampling", sampling),
        history=history,
        implicit=implicit,
        end_sessions=end_sessions,
        decoder=decoder,
        journal_keep=journal_keep,
        disk_budget=None if disk_budget is None else size_in_bytes("--disk-budget", disk_budget),
        writer=writer,
        workers=workers,
        catalog=catalog,
        log_format=log_format,
        ready_file=ready_file,
    )
    process.run(_serve(config))


def _serving(config: ProxyConfig) -> AbstractAsyncContextManager[Serving]:
    if config.workers == 1:
        from forge.proxy.app import serve

        return serve(config)
    from forge.proxy.workers import parent

    return parent.serve(config)


async def _serve(config: ProxyConfig) -> None:
    """Until SIGTERM or SIGINT; while it still starts, these end it at once."""
    stop = asyncio.Event()
    serving = False
    main = asyncio.current_task()
    assert main is not None

    def signalled() -> None:
        stop.set()
        if not serving:
            main.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    try:
        async with _serving(config) as running:
            serving = True
            process.settle()
            typer.echo(f"base URL for harnesses  {running.base_url}")
            typer.echo(f"control plane           {running.control_url}  (token in {running.control_token_file})")
            typer.echo(f"data                    {config.data}  (run {config.run_id})")
            ends = [asyncio.ensure_future(event.wait()) for event in (stop, running.failed)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            typer.echo("stopping: running calls may end, then everything is decoded")
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    if not stop.is_set():
        raise ForgeError("the proxy stopped because a part of it failed", "its log above says which")
