"""slime and miles: the fields of their ``Sample``, by name; JSON lines, read back by ``forge.plugins.slime``.

Their own offline file is a pickle, which we neither read nor write. The non-obvious fact: rows of one session share
``rollout_id``, over which slime takes its mean; ``group_index`` and ``rollout_id`` are whole numbers, so they are
counted out in the order in which groups and sessions appear.
"""

from __future__ import annotations

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import write_lines
from forge.adapters.trainers.rows import Needs, Row

STD_FLOOR: Final = 1e-6
EXPERTS: Final = "rollout_routed_experts"
"""An array in memory; a ``.npy`` file in base64 in ours."""


class Slime:
    name = "slime"
    needs = Needs()
    suffix = ".jsonl"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_lines(path, numbered(rows))
        return Counter()


def numbered(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """Rows as samples with the numbers that slime wants."""
    groups: dict[str | None, int] = {}
    sessions: dict[str, int] = {}
    for index, row in enumerate(rows):
        group = groups.setdefault(row.group, len(groups))
        rollout = sessions.setdefault(row.sample.session_id, len(sessions))
        told = {**sample(row), "group_index": group, "index": index, "rollout_id": rollout}
        if row.sample.routed_experts is not None:
            told[EXPERTS] = base64.b64encode(row.sample.routed_experts).decode()
        yield told


def with_experts(told: dict[str, Any]) -> dict[str, Any]:
    """A line of the file, its experts an array again."""
    if EXPERTS in told:
        told[EXPERTS] = np.load(io.BytesIO(base64.b64decode(told[EXPERTS])), allow_pickle=False)
    return told


def sample(row: Row) -> dict[str, Any]:
    """Fields of slime's ``Sample`` that do not depend on other rows."""
    ours, experts = row.sample, row.experts()
    messages = msgspec.json.decode(ours.messages or "[]", type=list[dict[str, Any]])
    return {
        "prompt": messages[:-1],
        "tokens": row.ids.tolist(),
        "response": _text(messages[-1]) if messages else "",
        "response_length": len(ours.response_ids),
        "reward": ours.reward,
        "loss_mask": ours.response_mask.tolist(),
        "weight_versions": [str(version) for version in ours.token_versions[::2] if version >= 0],
        "rollout_log_probs": row.log_probs().tolist(),
        "status": "truncated" if ours.truncated else "completed",
        "remove_sample": False,
        "session_id": ours.session_id,
        "metadata": row.place(),
        **({EXPERTS: experts} if experts is not None else {}),
    }


def advantages(rewards: Sequence[float | None], groups: Sequence[Any], rollouts: Sequence[Any]) -> list[float]:
    """What slime's reward post-process gives back: each row's session against the sessions of its group. A session
    of several rows counts once; a group with nothing to compare, and a row without reward, gets 0."""
    seen: dict[Any, dict[Any, float]] = defaultdict(dict)
    for reward, group, rollout in zip(rewards, groups, rollouts, strict=True):
        if reward is not None:
            seen[group][rollout] = reward
    return [
        0.0 if reward is None else _advantage(reward, list(seen[group].values()))
        for reward, group in zip(rewards, groups, strict=True)
    ]


def _advantage(reward: float, group: list[float]) -> float:
    if len(group) < 2:
        return 0.0
    mean = sum(group) / len(group)
    spread = (sum((each - mean) ** 2 for each in group) / (len(group) - 1)) ** 0.5
    return float((reward - mean) / (spread + STD_FLOOR))


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""
