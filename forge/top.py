"""What ``forge top`` shows: one proxy's state, as its control plane tells it, as a frame for a terminal.

Pure: a state in, a renderable out. Speeds are the proxy's own, so that a single frame has them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table
from rich.text import Text

STATES: Final = {"up": "green", "down": "red", "loading": "yellow", "draining": "yellow"}
LAGS: Final = 5.0
"""Seconds of lag that are shown in yellow: a cut comes every five."""


def frame(state: Mapping[str, Any], *, rows: int) -> RenderableType:
    """``rows``: sessions that fit."""
    workers: list[RenderableType] = [Text(), _workers(state["workers"])] if "workers" in state else []
    return Group(*_head(state), *workers, Text(), _replicas(state["replicas"]), Text(), *_sessions(state, rows))


def _head(state: Mapping[str, Any]) -> Iterable[Text]:
    ready = "[red]not ready[/red]" if state["unready"] else "[green]ready[/green]"
    yield _line(
        f"[bold]forge {state['version']}[/bold]  {escape(state['base_url'])}  run {escape(state['run_id'])}  "
        f"up {age(state['up_s'])}  {ready}"
    )
    for why in state["unready"]:
        yield _line(f"[red]  {escape(why)}[/red]")
    for warning in state["warnings"]:
        yield _line(f"[yellow]  {escape(warning)}[/yellow]")
    lost = state["unrecorded"]
    yield _line(
        f"calls     {state['calls_running']:,} running  {state['calls_per_s']:.1f}/s  {state['calls_ended']:,} ended  "
        + (f"[red]{lost:,} unrecorded[/red]" if lost else "0 unrecorded")
    )
    reasons = ", ".join(f"{escape(name)} {count:,}" for name, count in sorted(state["untrainable"].items()))
    yield _line(
        f"tokens    {state['tokens_per_s']:,.0f}/s sampled  {state['output_tokens']:,} sampled of "
        f"{state['prompt_tokens']:,} read  untrainable rows: {reasons or 'none'}"
    )
    decoder, disk = state["decoder"], state["disk"]
    lag = f"{decoder['lag_s']:.1f} s, {decimal(decoder['lag_bytes'])}"
    lag = f"[yellow]{lag}[/yellow]" if decoder["lag_s"] > LAGS else lag
    lag += "" if decoder["up"] else " (not running)"
    yield _line(f"lag       flush {state['flush_lag_s'] * 1000:.0f} ms  decoder {lag}")
    free = "" if disk["free"] is None else f"  {decimal(disk['free'])} free"
    budget = "" if disk["budget"] is None else f" of {decimal(disk['budget'])}"
    parts = "  ".join(f"{name} {decimal(size)}" for name, size in sorted(disk["used"].items()) if size)
    yield _line(f"disk      {decimal(sum(disk['used'].values()))}{budget}{free}  ({parts})")


def _workers(workers: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("worker", "pid", "state", "sessions", "running", "calls", "calls/s", "starts")
    for each in workers:
        state = "[green]up[/green]" if each["up"] else "[red]starting[/red]"
        counts = (str(each[name]) for name in ("sessions", "running", "calls"))
        table.add_row(
            str(each["number"]), str(each["pid"]), state, *counts, f"{each['calls_per_s']:.1f}", str(each["starts"])
        )
    return table


def _replicas(replicas: Iterable[Mapping[str, Any]]) -> Table:
    table = _table("replica", "engine", "state", "running", "version", "")
    for each in replicas:
        color = STATES.get(each["state"], "red")
        version = "-" if each["policy_version"] is None else str(each["policy_version"])
        state = f"[{color}]{each['state']}[/{color}]"
        table.add_row(
            escape(each["url"]), each["engine"], state, str(each["in_flight"]), version, escape(each["reason"])
        )
    return table


def _sessions(state: Mapping[str, Any], rows: int) -> Iterable[RenderableType]:
    table = _table("session", "run", "harness", "task", "calls", "running", "idle", "open")
    shown = state["sessions"][: max(1, rows)]
    for each in shown:
        names = (each["session_id"], each["run_id"], each["harness"] or "-", each["task_id"] or "-")
        counts = (str(each["calls"]), str(each["running"] or ""), age(each["idle_s"]), age(each["open_s"]))
        table.add_row(*map(escape, names), *counts)
    yield table
    more = state["sessions_open"] - len(shown)
    yield _line(
        f"{state['sessions_open']:,} of {state['sessions_max']:,} sessions" + (f", {more:,} not shown" * (more > 0))
    )


def age(seconds: float) -> str:
    """``0s``, ``59s``, ``12m``, ``5h``, ``3d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in names:
        right = name in ("calls", "running", "version", "idle", "open", "pid", "sessions", "calls/s", "starts")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def _line(markup: str) -> Text:
    return Text.from_markup(markup)
