"""Datasets for these tests: sessions, calls and rows written as the decoder would write them, from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from forge.storage.delta import Chain
from forge.storage.journal import Position
from forge.storage.parts import part_name, run_dir, table_dir, write_part
from forge.storage.records import Call, Session
from forge.storage.samples import samples_of

RUN = "hello"


def place(number: int) -> str:
    return part_name(0, 1, Position(1, number), Position(1, number + 1))


def call(session: str, number: int, prompt: Sequence[int], output: Sequence[int], **fields: Any) -> Call:
    ids = np.asarray(output, dtype=np.int32)
    told: dict[str, Any] = {
        "harness": "pi",
        "sampling_sent": '{"temperature":1.0}',
        "policy_version_start": 1,
        "policy_version_end": 1,
        "logprobs_mode": "processed",
        "start_us": 1_000_000 * (number + 1),
        "response": '{"role":"assistant","content":"said"}',
        "output_log_probs": -0.5 - 0.01 * np.arange(len(ids), dtype=np.float32),
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "trainable": True,
    }
    return Call(
        call_id=f"{session}-{number}",
        run_id=RUN,
        session_id=session,
        seq=number,
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        output_ids=ids,
        **(told | fields),
    )


def conversation(session: str, turns: int, *, tokens: int = 3, **fields: Any) -> list[Call]:
    """Turns that extend each other exactly, two ids of the harness's between them."""
    base = sum(session.encode()) * 100
    history = list(range(base, base + 5))
    calls = []
    for number in range(turns):
        output = [base + 1000 + number * tokens + i for i in range(tokens)]
        calls.append(call(session, number, history, output, **fields))
        history = [*history, *output, base + 7, base + 8]
    return calls


def session(name: str, **fields: Any) -> Session:
    told: dict[str, Any] = {
        "harness": "pi",
        "status": "completed",
        "reward": 1.0,
        "reward_status": "graded",
        "task_id": "t",
        "open_us": 0,
        "close_us": 10**12,
    }
    return Session(session_id=name, run_id=RUN, **(told | fields))


def write(data: Path, calls: dict[str, list[Call]], **fields: Any) -> None:
    """One part per table; the rows of each session are derived as the decoder derives them."""
    sessions = {name: session(name, **fields) for name in calls}
    rows = []
    for own in calls.values():
        chain = Chain()
        rows += [chain.add(each) for each in own]
    samples = [sample for name, own in calls.items() for sample in samples_of(sessions[name], own)]
    write_part(run_dir(table_dir(data, "calls"), RUN) / place(1), "calls", rows)
    write_part(run_dir(table_dir(data, "sessions"), RUN) / place(1), "sessions", list(sessions.values()))
    write_part(run_dir(table_dir(data, "samples", "default"), RUN) / place(1), "samples", samples)


def untrainable(call: Call, reason: str, **fields: Any) -> Call:
    return replace(call, trainable=False, untrainable_reason=reason, **fields)
