"""``forge proxy``: the recording reverse proxy that a harness's base URL points at."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge.storage.errors import BadInput, ForgeError

if TYPE_CHECKING:
    from forge.proxy.config import ProxyConfig


class Engine(StrEnum):
    AUTO = "auto"
    VLLM = "vllm"
    EMBEDDED = "embedded"
    OPENAI = "openai"


class Recording(StrEnum):
    STRICT = "strict"
    BEST_EFFORT = "best-effort"


class Durable(StrEnum):
    PROCESS = "process"
    DISK = "disk"


EXAMPLE = "Example: forge proxy --upstream http://127.0.0.1:8000 --data ./data"


def register(app: typer.Typer) -> None:
    @app.command(epilog=EXAMPLE)
    def proxy(
        data: Annotated[Path, typer.Option(help="Directory of the journal and the dataset; made if it is not there.")],
        upstream: Annotated[
            list[str] | None,
            typer.Option(help="URL of a policy server; repeat it for more. None: add them by the control plane."),
        ] = None,
        host: Annotated[str, typer.Option(help="Address that harnesses reach.")] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port that harnesses reach; 0 takes a free one.")] = 8100,
        control_host: Annotated[str, typer.Option(help="Address of the control plane.")] = "127.0.0.1",
        control_port: Annotated[int, typer.Option(help="Port of the control plane; 0 takes a free one.")] = 8101,
        control_token_file: Annotated[
            Path | None, typer.Option(help="The control plane's token; made if it is not there. [DATA/control.token]")
        ] = None,
        upstream_key_file: Annotated[Path | None, typer.Option(help="File with the key of the policy servers.")] = None,
        engine: Annotated[Engine, typer.Option(help="Kind of the policy servers.")] = Engine.AUTO,
        record: Annotated[
            Recording, typer.Option(help="strict refuses a policy server whose calls could not train.")
        ] = Recording.STRICT,
        durability: Annotated[
            Durable, typer.Option(help="What a reply waits for: process survives kill -9, disk a power cut too.")
        ] = Durable.PROCESS,
        run: Annotated[str | None, typer.Option(help="Name of the run in the dataset. [proxy-DATE-TIME]")] = None,
        model: Annotated[str | None, typer.Option(help="Model name to send. [the first one it serves]")] = None,
        sampling: Annotated[
            str | None, typer.Option(help='Sampling sent with every call, as JSON: {"temperature": 1.0}.')
        ] = None,
        implicit: Annotated[
            bool,
            typer.Option("--implicit/--no-implicit", help="Record calls without a session key too (loopback only)."),
        ] = True,
        decoder: Annotated[
            bool, typer.Option("--decoder/--no-decoder", help="Turn the journal into Parquet while it is written.")
        ] = True,
        journal_keep: Annotated[str | None, typer.Option(help="Decoded journal to keep, e.g. 4G.")] = None,
        ready_file: Annotated[
            Path | None, typer.Option(help="Write URLs and pid here, as JSON, once it serves.")
        ] = None,
    ) -> None:
        """Serve harnesses from policy servers and record every call exactly.

        Point a harness's base URL at http://HOST:PORT/v1. Calls without a session key make implicit sessions;
        sessions with keys are opened over the control plane, which needs the token of --control-token-file.
        """
        from forge.proxy.config import Durability, ProxyConfig, Record

        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
        config = ProxyConfig(
            data=data,
            run_id=run or time.strftime("proxy-%Y%m%d-%H%M%S"),
            upstreams=tuple(upstream or ()),
            host=host,
            port=port,
            control_host=control_host,
            control_port=control_port,
            control_token_file=control_token_file,
            upstream_key_file=upstream_key_file,
            engine=engine.value,
            record=Record(record.value),
            durability=Durability(durability.value),
            model=model,
            sampling=_json_object(sampling),
            implicit=implicit,
            decoder=decoder,
            journal_keep=journal_keep,
            ready_file=ready_file,
        )
        _run(_serve(config))


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadInput(f"--sampling is not JSON: {error}", """write it as '{"temperature": 1.0}'""") from error
    if not isinstance(value, dict):
        raise BadInput("--sampling is no JSON object", """write it as '{"temperature": 1.0}'""")
    return value


async def _serve(config: ProxyConfig) -> None:
    """Until SIGTERM or SIGINT; while it still starts, these end it at once."""
    from forge.proxy.app import serve

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
        async with serve(config) as running:
            serving = True
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


def _run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop where it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
