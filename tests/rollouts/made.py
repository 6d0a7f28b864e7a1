"""Sessions by hand: what a place where sessions run would give back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forge.rollouts.groups import Ended, Work
from forge.storage.records import Sample, SessionStatus


def sample(session_id: str, *, version: int | None = 0, **more: Any) -> Sample:
    fields: dict[str, Any] = {
        "sample_id": f"{session_id}-0", "run_id": "r", "session_id": session_id, "task_id": "t", "group_id": "g",
        "rollout_index": 0, "row_index": 0, "row_count": 1, "prompt_ids": np.array([1], np.int32),
        "response_ids": np.array([2], np.int32), "response_mask": np.array([1], np.int8),
        "rollout_log_probs": np.array([-0.5], np.float32), "turn_starts": [0], "turn_ends": [1],
        "turn_call_ids": ["c"], "policy_version_min": version, "policy_version_max": version,
    }  # fmt: skip
    return Sample(**(fields | more))


class Scripted:
    """Sessions with these rewards, in the order of their places; None is one that broke off."""

    def __init__(self, rewards: Sequence[float | None], truncated: set[int] | None = None) -> None:
        self._rewards = rewards
        self._truncated = truncated or set()
        self.asked: list[int] = []
        self.left: list[Ended] = []

    async def session(self, work: Work, index: int) -> Ended:
        self.asked.append(index)
        reward = self._rewards[index]
        if reward is None:
            return Ended(session_id=f"s{index}", status=SessionStatus.INTERRUPTED)
        rows = [sample(f"s{index}", reward=reward, truncated=index in self._truncated)]
        return Ended(session_id=f"s{index}", status=SessionStatus.COMPLETED, reward=reward, samples=rows)

    async def not_selected(self, sessions: Sequence[Ended]) -> None:
        self.left += sessions
