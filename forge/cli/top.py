"""``forge top``: a proxy at work, live."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

REFRESH_S: Final = 1.0
HEAD_LINES: Final = 14
"""Lines of a frame that are no session."""


def register(app: typer.Typer) -> None:
    app.command(name="top", epilog="Example: forge top --data data")(top)


def top(
    control: Annotated[str, typer.Option(help="URL of the proxy's control plane.")] = "http://127.0.0.1:8101",
    data: Annotated[Path, typer.Option(help="The proxy's data directory, where its control token is.")] = Path("data"),
    control_token_file: Annotated[Path | None, typer.Option(help="Its control token. [DATA/control.token]")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end, for scripts.")] = False,
) -> None:
    """Watch a proxy: sessions, calls and tokens per second, lag, disk, policy servers. Ctrl-C ends it."""
    from forge.proxy.config import TOKEN_FILE

    try:
        asyncio.run(_show(control, control_token_file or data / TOKEN_FILE, once=once))
    except KeyboardInterrupt:
        raise typer.Exit from None


def _lines(state: Mapping[str, Any]) -> int:
    workers = state.get("workers")
    return len(state["replicas"]) + (len(workers) + 2 if workers else 0)


async def _show(control: str, token_file: Path, *, once: bool) -> None:
    from rich.live import Live

    from forge.client import ControlClient
    from forge.terminal import console
    from forge.top import frame

    out = console()
    async with ControlClient.from_token_file(control, token_file) as client:
        if once or not out.is_terminal:
            out.print(frame(await client.status(), rows=1 << 30))
            return
        with Live(console=out, screen=True, auto_refresh=False) as live:
            while True:
                state = await client.status()
                live.update(frame(state, rows=out.height - HEAD_LINES - _lines(state)), refresh=True)
                await asyncio.sleep(REFRESH_S)
