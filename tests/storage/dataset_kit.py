"""A small dataset with everything in it, and what its readers must find: tools and reasoning and none, images, choices,
a chain over parts with a whole row in the middle, a call that failed, a late reward, two runs.

``python tests/storage/dataset_kit.py`` writes the golden files of the current schema version, beside those of the
versions before; a version's files are never written again once it is released.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from forge.storage.columns import SCHEMA_VERSION
from forge.storage.delta import Chain
from forge.storage.journal import Position
from forge.storage.parts import part_name, run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from forge.storage.records import Call, RewardStatus, Sample, Session, SessionStatus, Untrainable
from forge.storage.samples import samples_of

GOLDEN: Final = Path(__file__).parent / "golden"
RUNS: Final = ("first", "second")
TURNS: Final = 36
"""More than the links between two whole rows."""
TOOLS: Final = '[{"type":"function","function":{"name":"shell","parameters":{"type":"object"}}}]'
IMAGES: Final = ["a" * 64, "b" * 64]
WALL_US: Final = 1_790_000_000_000_000
WIDE: Final = 151_936
"""Ids of a Qwen-sized vocabulary."""


def plain_calls(run: str) -> list[Call]:
    """A long talk without tools; every turn goes on exactly."""
    calls: list[Call] = []
    ids, messages = [1, 2, 3], [{"role": "user", "content": 'begin \u00e4 "\u4e16"\n\t\u2028'}]
    for turn in range(TURNS):
        output = [WIDE - 1 - turn, 7, turn]
        reply = {"role": "assistant", "content": f"reply {turn}"}
        calls.append(_call(run, "plain", turn, ids, output, messages, reply))
        ids = [*ids, *output, 100 + turn]
        messages = [*messages, reply, {"role": "user", "content": f"and {turn}"}]
    return calls


def agent_calls(run: str) -> list[Call]:
    """Tools, thoughts, images, two choices of one call, a branch that strips the thought, and an error."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
    call = {"id": "call_1", "type": "function", "function": {"name": "shell", "arguments": '{"cmd": "ls"}'}}
    reply = {"role": "assistant", "content": None, "reasoning": "a folder", "tool_calls": [call]}
    media = json.dumps(IMAGES)
    more: dict[str, Any] = {"tools": TOOLS, "media": media, "kind": "main", "harness": "pi"}
    first = _call(run, "agent", 0, [5, 6, 7], [8, 9], messages, reply, finish_reason="tool_calls", **more)
    other = replace(first, choice=1, output_ids=_ids([8, 10]), response='{"role":"assistant","content":"other"}')
    went = [*messages, reply, {"role": "tool", "tool_call_id": "call_1", "content": "README"}]
    second = _call(run, "agent", 1, [5, 6, 7, 8, 9, 11], [12], went, {"role": "assistant", "content": "done"}, **more)
    bare = [*messages, {k: v for k, v in reply.items() if k != "reasoning"}, went[-1]]
    third = _call(run, "agent", 2, [5, 6, 7, 8, 11], [13], bare, {"role": "assistant", "content": "done"}, **more)
    failed = replace(
        _call(run, "agent", 3, [], [], bare, None, request_raw=b"\x00raw", dialect="responses"),
        **{"status": "error", "http_status": 502, "error": "upstream", "trainable": False, "tools": None},
        untrainable_reason=Untrainable.STATUS,
    )
    unknown = replace(second, call_id=f"{run}-agent-4", seq=40, output_log_probs=_log_probs([math.nan]))
    return [first, other, second, third, failed, replace(unknown, trainable=False, tools=None)]


def write(data: Path, runs: Sequence[str] = RUNS) -> None:
    """Several parts of each run."""
    for run in runs:
        plain, agent = plain_calls(run), agent_calls(run)
        chains = {f"{run}-plain": Chain(), f"{run}-agent": Chain()}
        for number, calls in enumerate([plain[:5] + agent[:2], agent[2:], plain[5:20], plain[20:]]):
            rows = [chains[call.session_id].add(call) for call in calls]
            write_part(run_dir(table_dir(data, "calls"), run) / _place(number), "calls", rows)
        for number, sessions in enumerate(revisions(run)):
            write_part(run_dir(table_dir(data, "sessions"), run) / _place(number), "sessions", sessions)
        for number, sample in enumerate(samples(run)):
            write_part(run_dir(table_dir(data, "samples", DEFAULT.name), run) / _place(number), "samples", [sample])


def samples(run: str) -> list[Sample]:
    agent, plain = revisions(run)[-1]
    return samples_of(plain, plain_calls(run)) + samples_of(agent, agent_calls(run))


def revisions(run: str) -> list[list[Session]]:
    plain = Session(
        session_id=f"{run}-plain",
        run_id=run,
        task_id="t",
        group_id="g",
        rollout_index=0,
        open_us=WALL_US,
        policy_version=3,
    )
    agent = replace(plain, session_id=f"{run}-agent", rollout_index=1, harness="pi", labels='{"a":1}')
    graded = replace(plain, revision=1, status=SessionStatus.COMPLETED, reward=0.5, close_us=WALL_US + 9)
    graded = replace(
        graded, reward_status=RewardStatus.GRADED, reward_components='{"tests":0.5}', reward_us=WALL_US + 9
    )
    return [[plain], [agent, graded]]


def described(record: Any) -> dict[str, Any]:
    """A record as JSON has it."""
    return {field.name: _jsonable(getattr(record, field.name)) for field in fields(record)}


def _jsonable(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return [None if isinstance(v, float) and math.isnan(v) else v for v in value]
    return value


def _call(
    run: str,
    session: str,
    number: int,
    prompt: list[int],
    output: list[int],
    messages: list[Any],
    reply: dict[str, Any] | None,
    **more: Any,
) -> Call:
    return Call(
        call_id=f"{run}-{session}-{number}",
        run_id=run,
        session_id=f"{run}-{session}",
        seq=10 * number,
        messages=_text(messages),
        response=_text(reply) if reply is not None else None,
        prompt_ids=_ids(prompt),
        output_ids=_ids(output),
        output_log_probs=_log_probs([-0.5 - i for i in range(len(output))]),
        start_us=WALL_US + number,
        policy_version_start=3,
        policy_version_end=3,
        sampling_sent='{"temperature":1.0}',
        trainable=True,
        **{"finish_reason": "stop", **more},
    )


def _ids(values: list[int]) -> Any:
    return np.asarray(values, dtype=np.int32)


def _log_probs(values: list[float]) -> Any:
    return np.asarray(values, dtype=np.float32)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _place(number: int) -> str:
    return part_name(0, 1, Position(1, number), Position(1, number + 1))


def expected(runs: Sequence[str] = RUNS) -> dict[str, list[dict[str, Any]]]:
    """What the readers must give back, but for the place of calls in their tree."""
    calls = [described(c) for run in runs for c in (*plain_calls(run), *agent_calls(run))]
    placed = ("parent_call_id", "parent_choice", "join", "join_cause")
    sessions = {s.session_id: described(s) for run in runs for group in revisions(run) for s in group}
    return {
        "calls": [{k: v for k, v in call.items() if k not in placed} for call in calls],
        "sessions": list(sessions.values()),
        "samples": [described(s) for run in runs for s in samples(run)],
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else GOLDEN / f"v{SCHEMA_VERSION}"
    write(folder, RUNS[:1])
    text = json.dumps(expected(RUNS[:1]), sort_keys=True).encode()
    (folder / "expected.json.gz").write_bytes(gzip.compress(text, mtime=0))
