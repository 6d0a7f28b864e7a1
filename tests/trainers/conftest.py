"""Rows by hand and data directories of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.storage.parts import run_dir, table_dir, write_part
from forge.storage.recipe import DEFAULT
from forge.storage.records import RewardStatus, Sample, Session, SessionStatus

MESSAGES = (
    '[{"role":"user","content":"go"},{"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function",'
    '"function":{"name":"run","arguments":"{\\"cmd\\": \\"ls\\"}"}}]},{"role":"tool","tool_call_id":"c1",'
    '"content":"a"},{"role":"assistant","content":"done"}]'
)
TOOLS = '[{"type":"function","function":{"name":"run","parameters":{"type":"object"}}}]'


def a_sample(session: str = "s0", row: int = 0, mask: Sequence[int] = (1, 1, 0, 1), **changes: Any) -> Sample:
    """Three prompt ids and a response; ids tell where they stand: prompt 10.., response 100.."""
    response_mask = np.array(mask, np.int8)
    size = len(response_mask)
    steps = -0.125 * np.arange(1, size + 1, dtype=np.float32)
    fields: dict[str, Any] = {
        "sample_id": f"{session}-{row}", "run_id": "r", "session_id": session, "task_id": "t", "group_id": "g",
        "rollout_index": 0, "row_index": row, "row_count": row + 1,
        "prompt_ids": np.arange(10, 13, dtype=np.int32), "response_ids": np.arange(100, 100 + size, dtype=np.int32),
        "response_mask": response_mask, "rollout_log_probs": np.where(response_mask == 1, steps, np.float32(np.nan)),
        "turn_starts": [0], "turn_ends": [size], "turn_call_ids": ["c"],
        "policy_version_min": 3, "policy_version_max": 4, "token_versions": [3, 1, 4, int(response_mask.sum()) - 1],
        "temperature": 1.0, "logprobs_mode": "processed", "session_trainable_tokens": int(response_mask.sum()),
        "reward": 1.0, "reward_status": "graded", "finish_reason": "stop", "kinds": ["main"],
        "messages": MESSAGES, "tools": TOOLS,
    }  # fmt: skip
    return Sample(**(fields | changes))


def a_session(name: str, reward: float | None, **changes: Any) -> Session:
    fields: dict[str, Any] = {
        "session_id": name, "run_id": "r", "task_id": "t", "group_id": "g", "status": SessionStatus.COMPLETED,
        "reward": reward, "reward_status": RewardStatus.NULL if reward is None else RewardStatus.GRADED,
    }  # fmt: skip
    return Session(**(fields | changes))


MakeData = Callable[..., Path]


@pytest.fixture
def make_data(tmp_path: Path) -> MakeData:
    def make(samples: Sequence[Sample], sessions: Sequence[Session]) -> Path:
        """The default set as the decoder leaves it."""
        data = tmp_path / "data"
        for run in {each.run_id for each in sessions}:
            for folder, table, rows in (
                (table_dir(data, "samples", DEFAULT.name), "samples", samples),
                (table_dir(data, "sessions"), "sessions", sessions),
            ):
                mine = [each for each in rows if each.run_id == run]
                write_part(run_dir(folder, run) / "part-0.parquet", table, mine)
        return data

    return make
