"""Endurance: 1,000 streams of 100k-token sessions open at once, for minutes.

Owns what must stay as it is: no stream ends early, memory does not grow, rows come as soon at the end as at the start.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench import process
from bench.bodies import streams
from bench.figures import Figure, Figures
from bench.record import probe_answers
from bench.setting import Setting, stub, tool
from bench.targets.base import PATHS
from bench.targets.ours import Ours, ours
from bench.words import Words
from forge.storage.parts import parts_in, read_part, table_dir

CLIENTS, PROMPT, EVENTS, STEP_US = 1000, 100_000, 60, 500_000
"""Each stream lasts half a minute, then the session asks again; they begin one after another, over as long."""
QUICK = (16, 1000, 10, 50_000)
SETTLED = 1 / 3
"""Of the time: what is measured comes after it, when every session is at work."""
SAMPLE_S = 1.0


def run(set_: Setting, figures: Figures) -> None:
    clients, prompt, events, step_us = QUICK if set_.quick else (CLIENTS, PROMPT, EVENTS, STEP_US)
    seconds = 3.0 if set_.quick else 60 * set_.minutes
    folder = set_.work / "answers"
    folder.mkdir()
    probe_answers(folder)
    streams(folder, Words(11), "open", prompt, events, step_us)
    with stub(set_, folder) as (_, port), ours(set_, port) as target:
        headers = set_.work / "headers"
        headers.write_text("\n".join(target.headers(clients)) + "\n")
        set_.say(f"open: {clients:,} streams for {seconds:g} s")
        command = [str(tool("load")), str(target.port), PATHS["chat"], str(folder / "open.chat"), str(clients)]
        command += [str(1_000_000), str(seconds), str(headers), str(events), str(events * step_us / 1e6)]
        memory, behind, said = _watched(target, command)
        target.calls = said["done"] + said["errors"]
        target.settle()
        target.check()
        lags = _lags(target.data)
    figures.add("errors of 1,000 open streams", Figure.exact(said["errors"]))
    figures.add("streams that ended whole", Figure.exact(said["done"]))
    _memory(memory, figures)
    figures.add("highest RSS of the decoder, MB", Figure.exact(behind))
    third = max(1, len(lags) // 3)
    figures.add("decoder lag, seconds", Figure(median(lags), min(lags), max(lags), len(lags)))
    figures.add("decoder lag: last third / first third", Figure.exact(median(lags[-third:]) / median(lags[:third])))
    figures.note(
        f"{clients:,} streams of {prompt:,} prompt tokens for {seconds / 60:.3g} minutes, "
        f"one event each {step_us / 1e6:g} s; lag: from a call's end to its row, the longest of each part"
    )


def _watched(target: Ours, command: list[str]) -> tuple[list[tuple[float, float]], float, dict[str, Any]]:
    """(seconds, MB) of the proxy while the load runs, the decoder's most MB, and what the load says."""
    behind = 0.0
    memory: list[tuple[float, float]] = []
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as load:
        assert load.stdout is not None
        try:
            while load.poll() is None:
                memory.append((time.monotonic() - began, process.rss_kb(target.pids()) / 1024))
                behind = max(behind, process.rss_kb(target.aside()) / 1024)
                time.sleep(SAMPLE_S)
        finally:
            load.kill()
        said = load.stdout.read()
    return memory, behind, dict(json.loads(said))


def _memory(memory: list[tuple[float, float]], figures: Figures) -> None:
    """The slope of a straight line, while all streams are open."""
    seconds = [at for at, _ in memory]
    kept = np.array([(at, mb) for at, mb in memory if at >= SETTLED * seconds[-1]])
    slope = float(np.polyfit(kept[:, 0] / 60, kept[:, 1], 1)[0]) if len(kept) > 1 else 0.0
    figures.add("memory slope, MB per minute", Figure.exact(slope))
    figures.add("RSS, MB", Figure(float(np.median(kept[:, 1])), kept[:, 1].min(), kept[:, 1].max(), len(kept)))


def _lags(data: Path) -> list[float]:
    """Of each part of ``calls``, in order: seconds from the end of its earliest call until it was there."""
    lags: list[float] = []
    for path in sorted(parts_in(table_dir(data, "calls")), key=lambda path: path.stat().st_mtime):
        table = read_part(path, "calls", ["start_time", "end_us"])
        ends = [
            start.timestamp() + end / 1e6
            for start, end in zip(table["start_time"].to_pylist(), table["end_us"].to_pylist(), strict=True)
        ]
        lags.append(path.stat().st_mtime - min(ends))
    return lags
