"""Streams: CPU time of a streamed event against nginx and peers, and of a translated one against the chat lane's.

Owns which streams run. 32 clients, one event each 10 ms, as 32 agents that are answered at 100 tokens a second.
"""

from __future__ import annotations

from bench import bodies
from bench.bodies import STREAM_EVENTS, STREAM_US
from bench.burst import Burst, Failed, Load, burst
from bench.figures import Figures, of_rounds
from bench.lineup import bursts, lineup
from bench.pages import touch
from bench.setting import Setting, stub
from bench.targets.base import PATHS, Running

NAMES = ("direct", "nginx", "ours", "vllm-router", "sglang-router", "rllm", "litellm")
CLIENTS = 32
SECONDS = 180.0
BUSY_US = 0.8 * STREAM_US / CLIENTS
"""A target that takes more for an event has no core left: it runs without priority, for as long as it takes."""

Key = tuple[str, str]
"""Target and dialect."""


def run(set_: Setting, figures: Figures) -> None:
    folder = set_.work / "answers"
    folder.mkdir()
    bodies.write(folder)
    touch(set_, figures)
    with stub(set_, folder) as (pid, port), lineup(set_, port, figures, NAMES) as running:
        costs = _warm(set_, pid, running, figures)

        def measure(target: Running) -> list[Burst]:
            mine = [key for key in costs if key[0] == target.name]
            return [burst(set_, pid, target, _load(set_, key[1]), real_time=costs[key] < BUSY_US) for key in mine]

        there = [target for target in running if (target.name, "chat") in costs]
        each = bursts(set_, there, figures, "streams", measure)
        found = {
            (name, dialect): [one[place] for one in rounds]
            for name, rounds in each.items()
            for place, dialect in enumerate(dialect for target, dialect in costs if target == name)
        }
        for target in running:
            target.check()
    _report(found, figures)


def _load(set_: Setting, dialect: str, clients: int = CLIENTS) -> Load:
    clients = 2 if set_.quick else clients
    body = set_.work / "answers" / f"stream.{dialect}"
    return Load(body, PATHS[dialect], clients, clients, events=STREAM_EVENTS, seconds=SECONDS)


def _warm(set_: Setting, pid: int, running: list[Running], figures: Figures) -> dict[Key, float]:
    """µs of each event, roughly; only of those that pass every event on."""
    costs: dict[Key, float] = {}
    for target in running:
        for dialect in PATHS if target.name == "ours" else ("chat",):
            try:
                warm = burst(set_, pid, target, _load(set_, dialect, CLIENTS // 4), real_time=False)
                costs[target.name, dialect] = warm.us_per_event
            except Failed as error:
                figures.note(f"no streamed row: {error}")
    return costs


def _report(found: dict[Key, list[Burst]], figures: Figures) -> None:
    cost = {key: [one.us_per_event for one in bursts] for key, bursts in found.items() if key[0] != "direct"}
    for (name, dialect), values in cost.items():
        figures.add(f"{name}, {dialect}: CPU µs per event", of_rounds(values))
    mine = cost.get(("ours", "chat"))
    if mine is None:
        return
    for name in ("nginx", "vllm-router", "sglang-router"):
        if (name, "chat") in cost:
            figures.add(f"ours / {name}, per event", of_rounds(mine, cost[name, "chat"]))
    for name in ("rllm", "litellm"):
        if (name, "chat") in cost:
            figures.add(f"{name} / ours, per event", of_rounds(cost[name, "chat"], mine))
    for dialect in ("responses", "messages"):
        if ("ours", dialect) in cost:
            figures.add(f"{dialect} / chat, per event", of_rounds(cost["ours", dialect], mine))
    figures.add(
        "our decoder: CPU µs per event", of_rounds([b.aside_ns / 1000 / b.events for b in found["ours", "chat"]])
    )
    _latency(found, figures)


def _latency(found: dict[Key, list[Burst]], figures: Figures) -> None:
    """From the stub's sending of an event to the client's reading of it, over what it takes without a target."""
    floor = found.get(("direct", "chat"))
    if floor is None:
        return
    for name in [name for name, dialect in found if dialect == "chat" and name != "direct"]:
        for at in ("p50", "p99"):
            pairs = zip(found[name, "chat"], floor, strict=True)
            added = [getattr(one, f"event_{at}_us") - getattr(direct, f"event_{at}_us") for one, direct in pairs]
            figures.add(f"{name}: added to an event, µs, {at}", of_rounds(added))
