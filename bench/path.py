"""The path of a whole call: CPU time against nginx, routers and recording peers, and the latency that is added.

Owns which bursts are made and which ratios are taken of them. Ratios are of the same round.
"""

from __future__ import annotations

from bench import bodies
from bench.bodies import SIZES, Size
from bench.burst import REAL_TIME_S, Burst, Failed, Load, burst
from bench.figures import Figures, of_rounds
from bench.lineup import bursts, lineup
from bench.pages import touch
from bench.setting import Setting, stub
from bench.targets.base import PATHS, Running

NAMES = ("direct", "nginx", "ours", "vllm-router", "sglang-router", "rllm", "litellm")
CALLS_MAX = {"s": 1500, "m": 400, "l": 120}
CALLS_MIN = 4
ALONE_CALLS = 400
"""One at a time, for latencies."""

Rounds = dict[str, list[Burst]]
"""The bursts of each target, one for each round."""


def run(set_: Setting, figures: Figures) -> None:
    folder = set_.work / "answers"
    folder.mkdir()
    bodies.write(folder)
    touch(set_, figures)
    with stub(set_, folder) as (pid, port), lineup(set_, port, figures, NAMES) as running:
        for size in SIZES:
            _size(set_, pid, running, size, figures)
        few = [target for target in running if target.name in ("direct", "nginx", "ours")]
        _latency(set_, pid, few, figures)
        for target in running:
            target.check()
        figures.note(f"bursts at real-time priority: {'yes' if set_.real_time else 'no'}")
        figures.note("versions: " + ", ".join(f"{t.name} {t.version}" for t in running if t.version))


def _size(set_: Setting, pid: int, running: list[Running], size: Size, figures: Figures) -> None:
    body = set_.work / "answers" / f"{size.name}.request"
    calls = {}
    for target in list(running):
        try:
            calls[target.name] = _how_many(set_, pid, target, size)
        except Failed as error:
            figures.note(f"no row at {size}: {error}")

    def measure(target: Running) -> list[Burst]:
        count = calls[target.name]
        return [burst(set_, pid, target, Load(body, PATHS["chat"], min(size.clients, count), count))]

    there = [target for target in running if target.name in calls]
    each = bursts(set_, there, figures, f"path at {size}", measure)
    found = {name: [one for (one,) in rounds] for name, rounds in each.items()}
    _ratios(found, size, figures)


def _how_many(set_: Setting, pid: int, target: Running, size: Size) -> int:
    """As many calls as stay within a short burst, by a few that warm it up."""
    body = set_.work / "answers" / f"{size.name}.request"
    warm = burst(set_, pid, target, Load(body, PATHS["chat"], CALLS_MIN, 4 * CALLS_MIN), real_time=False)
    if set_.quick:
        return CALLS_MIN
    fits = int(REAL_TIME_S / 2 * 1e6 / max(warm.us_per_call, 1.0))
    return max(CALLS_MIN, min(CALLS_MAX[size.name], fits))


def _ratios(found: Rounds, size: Size, figures: Figures) -> None:
    cost = {name: [one.us_per_call for one in bursts] for name, bursts in found.items() if name != "direct"}
    for name, values in cost.items():
        figures.add(f"{name}, {size}: CPU µs per call", of_rounds(values))
    mine = cost.get("ours")
    if mine is None:
        return
    decoder = [one.aside_ns / 1000 / one.calls for one in found["ours"]]
    figures.add(f"our decoder, {size}: CPU µs per call", of_rounds(decoder))
    for name in ("nginx", "vllm-router", "sglang-router"):
        if name in cost:
            figures.add(f"ours / {name}, {size}", of_rounds(mine, cost[name]))
    for name in ("rllm", "litellm"):
        if name in cost:
            figures.add(f"{name} / ours, {size}", of_rounds(cost[name], mine))
    if "rllm" in cost:
        both = [path + behind for path, behind in zip(mine, decoder, strict=True)]
        figures.add(f"rllm / ours with decoder, {size}", of_rounds(cost["rllm"], both))


def _latency(set_: Setting, pid: int, running: list[Running], figures: Figures) -> None:
    body = set_.work / "answers" / "s.request"
    calls = CALLS_MIN if set_.quick else ALONE_CALLS

    def measure(target: Running) -> list[Burst]:
        return [burst(set_, pid, target, Load(body, PATHS["chat"], 1, calls))]

    each = bursts(set_, running, figures, "one call at a time", measure)
    found = {name: [one for (one,) in rounds] for name, rounds in each.items()}
    floor = found.pop("direct", None)
    for name in ("p50", "p99") if floor else ():
        added = {t: _added(bursts, floor or [], f"{name}_us") for t, bursts in found.items()}
        for who, values in added.items():
            figures.add(f"{who}, alone: added µs, {name}", of_rounds(values))
        if {"ours", "nginx"} <= added.keys():
            figures.add(f"ours / nginx, added {name}", of_rounds(added["ours"], added["nginx"]))


def _added(bursts: list[Burst], floor: list[Burst], name: str) -> list[float]:
    return [getattr(one, name) - getattr(direct, name) for one, direct in zip(bursts, floor, strict=True)]
