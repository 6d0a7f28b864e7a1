"""Memory: 256 calls of 128k tokens, all of them open with everything said but the end of the answer.

Owns the measure: the proxy's resident memory while the stub holds the last bytes of every answer back.
"""

from __future__ import annotations

import os
import subprocess
import time

from bench import bodies, process
from bench.bodies import HELD_US, SIZES
from bench.figures import Figure, Figures
from bench.setting import Setting, stub, tool
from bench.targets.base import PATHS
from bench.targets.ours import ours

CALLS = 256
ALLOWED_MB = 64
PER_BYTE = 1.2
MB = 1 << 20


def run(set_: Setting, figures: Figures) -> None:
    folder = set_.work / "answers"
    folder.mkdir()
    bodies.write(folder)
    size = SIZES[0] if set_.quick else SIZES[-1]
    calls = 8 if set_.quick else CALLS
    body = folder / f"{size.name}_held.request"
    with stub(set_, folder) as (_, port), ours(set_, port) as target:
        idle = process.rss_kb(target.pids()) / 1024
        headers = set_.work / "headers"
        headers.write_text("\n".join(target.headers(calls)) + "\n")
        set_.say(f"memory: {calls} calls of {size}")
        command = [str(tool("load")), str(target.port), PATHS["chat"], str(body), str(calls), str(calls), "120"]
        peak, aside, flying = 0.0, 0.0, 0
        with subprocess.Popen([*command, str(headers), "0", "0"], stdout=subprocess.PIPE) as load:
            os.sched_setaffinity(load.pid, set_.load_cores)
            while load.poll() is None:
                peak = max(peak, process.rss_kb(target.pids()) / 1024)
                aside = max(aside, process.rss_kb(target.aside()) / 1024)
                flying = max(flying, int(target.ask("GET", "/capacity", {})["calls"]))
                time.sleep(0.05)
            said = load.stdout.read().decode() if load.stdout else ""
        if f'"done":{calls},' not in said:
            raise RuntimeError(f"not every call was answered: {said}")
        if flying < calls:
            raise RuntimeError(f"only {flying} of {calls} calls were open at once")
        target.calls = calls
        target.settle()
        target.check()
        after = process.rss_kb(target.pids()) / 1024
    flight = calls * (body.stat().st_size + (folder / f"{size.name}.json").stat().st_size) / MB
    figures.add(
        "256 open calls of 128k: RSS / (64 MB + 1.2 x bytes in flight)",
        Figure.exact(peak / (ALLOWED_MB + PER_BYTE * flight)),
    )
    for name, value in (
        ("in flight", flight),
        ("peak RSS", peak),
        ("RSS before", idle),
        ("RSS after", after),
        ("peak RSS of the decoder", aside),
    ):
        figures.add(f"{name}, MB", Figure.exact(value))
    figures.note(f"answers are held for {HELD_US[size.name] / 1e6:g} s")
