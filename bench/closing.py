"""The end of a session: from ``close`` to its samples, for 100 calls of 100k ids each, straight after the last call."""

from __future__ import annotations

import io
from dataclasses import replace

import pyarrow as pa

from bench import process
from bench.figures import Figures, of_rounds
from bench.record import recorded
from bench.setting import Setting
from bench.trajectories import Plan, make

PLAN = Plan(sessions=1, calls=100, start=95_000, output=60, between=40)
QUICK = Plan(sessions=1, calls=3, start=200, output=20, between=40)
ARROW = "application/vnd.apache.arrow.stream"
SESSIONS_MAX = 3


def run(set_: Setting, figures: Figures) -> None:
    one = make(QUICK if set_.quick else PLAN).exchanges
    sessions = min(set_.rounds, SESSIONS_MAX)
    set_.say(f"close: {sessions} sessions of {len(one)} calls, {len(one[-1].prompt_ids):,} ids in the last")
    said = [replace(exchange, session=number) for number in range(sessions) for exchange in one]
    seconds: list[float] = []
    cpu: list[float] = []
    tokens = sum(len(exchange.output_ids) for exchange in one)
    with recorded(set_, said, "close", decoder=True) as (target, ids):
        for session in ids:
            outcome = {"status": "completed", "reward": 1.0}
            before = process.cpu_ns(target.pids())
            stream, took = target.ask_raw("POST", f"/sessions/{session}/close", outcome, ARROW)
            samples = pa.ipc.open_stream(io.BytesIO(stream)).read_all()
            masked = sum(sum(mask) for mask in samples["response_mask"].to_pylist())
            if masked != tokens:
                raise RuntimeError(f"{masked} tokens to train on of {tokens}")
            seconds.append(took)
            cpu.append((process.cpu_ns(target.pids()) - before) / 1e9)
    figures.add("100 calls of 100k ids: seconds to samples", of_rounds(seconds))
    figures.add("the same in CPU seconds of the proxy", of_rounds(cpu))
    figures.note(
        f"{len(one)} calls, {len(one[0].prompt_ids):,} to {len(one[-1].prompt_ids):,} prompt ids, to one sample"
    )
