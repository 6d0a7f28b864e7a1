"""TRL: what its ``rollout_func`` gives back, the fields of its ``RolloutSample``, the turns of its harness trace.

By the names of TRL 1.16. The non-obvious fact: ``GRPOTrainer`` takes one completion per prompt, so of a session that is
several rows it gets the last one that trains; ``AsyncGRPOTrainer`` takes them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import FLOATS, IDS, MASK, PLACE, write_table
from forge.adapters.trainers.rows import Needs, Row
from forge.storage.media import MediaStore
from forge.storage.records import Call, CallStatus

COLUMNS: Final = {
    "prompt": pa.string(),
    "prompt_ids": IDS,
    "completion_ids": IDS,
    "logprobs": FLOATS,
    "env_mask": MASK,
    "reward": pa.float64(),
    "images": pa.list_(pa.string()),
    **PLACE,
}


class Trl:
    name = "trl"
    needs = Needs(images=True)
    suffix = ".parquet"
    caution = "TRL's GRPOTrainer reads recorded log probabilities only with use_vllm=True; AsyncGRPOTrainer always does"

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_table(path, COLUMNS, ((len(row.ids), _line(row, options.media)) for row in rows))
        return Counter()


def rollouts(sessions: Sequence[Sequence[Row]], *, pad_id: int) -> dict[str, list[Any]]:
    """What ``rollout_func`` returns: one completion per session, in order. A session without rows keeps its place with
    one token that nothing trains. A reward of None, there or of an ungraded session, is one that TRL's reward
    functions may give."""
    out: dict[str, list[Any]] = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")}
    more: dict[str, list[Any]] = {"reward": [], "rows_left_out": []}
    for rows in sessions:
        for name, values in (_completion(rows[-1]) if rows else _nothing(pad_id)).items():
            out[name].append(values)
        more["reward"].append(rows[-1].sample.reward if rows else None)
        more["rows_left_out"].append(max(0, len(rows) - 1))
    return {**out, **more}


def rollout_sample(row: Row, *, group: int, version: int) -> dict[str, Any]:
    """Fields of ``RolloutSample``; ``version`` stands in where the policy server tells none."""
    sample = row.sample
    assert row.advantage is not None, "a worker compares before it gives out"
    messages = msgspec.json.decode(sample.messages or "[]", type=list[dict[str, Any]])
    return {
        "prompt": messages[:-1],
        "completion": messages[-1:],
        "input_ids": row.ids.astype(np.int64),
        "completion_mask": row.mask.astype(np.int64),
        "old_log_probs": row.whole_log_probs(),
        "advantage": row.advantage,
        "model_version": sample.policy_version_min if sample.policy_version_min is not None else version,
        "group_id": group,
        "metrics": {"reward": row.reward, "rows": float(sample.row_count)},
    }


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call of a harness, by the names of TRL's trace."""

    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    per_token_logps: list[float]
    loss_mask: list[int]
    """Over prompt and completion."""
    request: dict[str, Any]
    response: dict[str, Any]

    @property
    def completion_tokens(self) -> list[str]:
        return [f"token_id:{token}" for token in self.completion_token_ids]


def turns(calls: Iterable[Call]) -> list[Turn]:
    """The trainable calls of a session, in order: recorded prompts and outputs, id for id."""
    return [_turn(call) for call in calls if call.trainable and call.status == CallStatus.OK]


def _turn(call: Call) -> Turn:
    return Turn(
        prompt_token_ids=call.prompt_ids.tolist(),
        completion_token_ids=call.output_ids.tolist(),
        per_token_logps=call.output_log_probs.tolist(),
        loss_mask=[0] * len(call.prompt_ids) + [1] * len(call.output_ids),
        request={
            "messages": msgspec.json.decode(call.messages),
            "tools": msgspec.json.decode(call.tools) if call.tools else None,
        },
        response={
            "choices": [
                {
                    "index": call.choice,
                    "message": msgspec.json.decode(call.response or "{}"),
                    "finish_reason": call.finish_reason,
                }
            ]
        },
    )


def _completion(row: Row) -> dict[str, list[Any]]:
    sample = row.sample
    return {
        "prompt_ids": sample.prompt_ids.tolist(),
        "completion_ids": sample.response_ids.tolist(),
        "logprobs": row.log_probs().tolist(),
        "env_mask": sample.response_mask.tolist(),
    }


def _nothing(pad_id: int) -> dict[str, list[Any]]:
    return {"prompt_ids": [pad_id], "completion_ids": [pad_id], "logprobs": [0.0], "env_mask": [0]}


def _line(row: Row, media: MediaStore) -> dict[str, Any]:
    sample = row.sample
    messages = msgspec.json.decode(media.linked((sample.messages or "[]").encode()), type=list[msgspec.Raw])
    return {
        **row.place(),
        "prompt": msgspec.json.encode(messages[:-1]).decode(),
        "prompt_ids": sample.prompt_ids,
        "completion_ids": sample.response_ids,
        "logprobs": row.log_probs(),
        "env_mask": sample.response_mask,
        "reward": row.reward,
        "images": row.images(media),
    }
