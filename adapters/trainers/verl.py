"""verl: the fields of its ``AgentLoopOutput`` and of its padded batch (``DataProto``), by verl 0.9's names.

An exported file is Parquet with verl's names, one row a line: verl's own dumps are pickles, which we neither read nor
write. The non-obvious fact: verl copies the reward of a session's last output to the earlier ones, so only the last
one carries it; and it reads ``reward_extra_info`` of every output that has a reward.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from forge.adapters.trainers.base import Options
from forge.adapters.trainers.files import FLOATS, IDS, MASK, PLACE, write_table
from forge.adapters.trainers.rows import Needs, Row
from forge.storage.errors import BadInput
from forge.storage.media import MediaStore

COLUMNS: Final = {
    "uid": pa.string(),
    "prompts": IDS,
    "responses": IDS,
    "response_mask": MASK,
    "rollout_log_probs": FLOATS,
    "reward_score": pa.float64(),
    "num_turns": pa.int32(),
    "routed_experts": pa.large_binary(),
    "min_global_steps": pa.int64(),
    "max_global_steps": pa.int64(),
    "images": pa.list_(pa.string()),
    **PLACE,
}


class Verl:
    name = "verl"
    needs = Needs(images=True)
    suffix = ".parquet"
    caution = None

    def write(self, rows: Iterable[Row], path: Path, options: Options) -> Counter[str]:
        write_table(path, COLUMNS, ((len(row.ids), line(row, options.media)) for row in rows))
        return Counter()


def output(row: Row) -> dict[str, Any]:
    """Keyword arguments of ``AgentLoopOutput``, but for ``metrics``."""
    sample, experts = row.sample, row.experts()
    # verl takes them apart by layer: without a shape they are of no use to it.
    replayed = {"routed_experts": experts.astype(np.int16)} if experts is not None and experts.ndim == 3 else {}
    return {
        "prompt_ids": sample.prompt_ids.tolist(),
        "response_ids": sample.response_ids.tolist(),
        "response_mask": sample.response_mask.tolist(),
        "response_logprobs": row.log_probs().tolist(),
        "reward_score": row.sample.reward if row.last else None,
        "num_turns": len(sample.turn_starts),
        **replayed,
        "extra_fields": {
            "min_global_steps": sample.policy_version_min,
            "max_global_steps": sample.policy_version_max,
            "reward_extra_info": {},
            **{name: value for name, value in row.place().items() if name in CARRIED},
        },
    }


Arrays = dict[str, NDArray[Any]]
LABELS: Final = (
    *("uid", "min_global_steps", "max_global_steps", "session_id", "row_index", "is_last"),
    *("session_trainable_tokens", "weight"),
)
CARRIED: Final = ("sample_id", "row_index", "row_count", "session_trainable_tokens")
"""Of our columns, what has no field of its own in verl."""


def padded(
    rows: Sequence[Mapping[str, Any]], *, prompt_length: int, response_length: int, pad_id: int
) -> dict[str, NDArray[Any]]:
    """The tensors of a ``DataProto`` as arrays, from rows of an export: prompts padded on the left, responses on the
    right, the reward on each row's last token."""
    size = len(rows)
    prompts = np.full((size, prompt_length), pad_id, np.int64)
    responses = np.full((size, response_length), pad_id, np.int64)
    seen = np.zeros((size, prompt_length + response_length), np.int64)
    mask = np.zeros((size, response_length), np.int64)
    log_probs = np.zeros((size, response_length), np.float32)
    scores = np.zeros((size, response_length), np.float32)
    for at, row in enumerate(rows):
        left, right = len(row["prompts"]), len(row["responses"])
        if left > prompt_length or right > response_length:
            raise BadInput(
                f"row {row['sample_id']} has {left} + {right} ids; the batch has room for "
                f"{prompt_length} + {response_length}",
                "give the batch more room, or export with --max-tokens",
            )
        prompts[at, prompt_length - left :] = row["prompts"]
        responses[at, :right] = row["responses"]
        seen[at, prompt_length - left : prompt_length + right] = 1
        mask[at, :right] = row["response_mask"]
        log_probs[at, :right] = row["rollout_log_probs"]
        scores[at, right - 1] = row["reward_score"]
    return _experts(rows, seen) | {
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "input_ids": np.concatenate((prompts, responses), axis=1),
        "attention_mask": seen,
        "position_ids": np.maximum(np.cumsum(seen, axis=1) - 1, 0) * seen,
        "rollout_log_probs": log_probs,
        "rm_scores": scores,
    }


def _experts(rows: Sequence[Mapping[str, Any]], seen: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """[rows, ids, layers, experts] at the places of the ids, where every row has them; the last id of each has none."""
    found = [row.get("routed_experts") for row in rows]
    arrays = [np.load(io.BytesIO(data), allow_pickle=False) for data in found if data is not None]
    if not arrays or len(arrays) < len(rows) or {array.shape[1:] for array in arrays} != {arrays[0].shape[1:]}:
        return {}
    placed = np.zeros((*seen.shape, *arrays[0].shape[1:]), np.int16)
    for at, array in enumerate(arrays):
        placed[at, np.flatnonzero(seen[at])[: len(array)]] = array
    return {"routed_experts": placed}


def read(path: Path, *, prompt_length: int, response_length: int, pad_id: int) -> tuple[Arrays, dict[str, list[Any]]]:
    """A whole export: the tensors of its ``DataProto``, and what stands beside them."""
    rows = pq.read_table(path).to_pylist()
    tensors = padded(rows, prompt_length=prompt_length, response_length=response_length, pad_id=pad_id)
    labels = {name: [row[name] for row in rows] for name in LABELS}
    return tensors, {**labels, "__num_turns__": [row["num_turns"] for row in rows]}


def line(row: Row, media: MediaStore) -> dict[str, Any]:
    sample = row.sample
    return {
        **row.place(),
        "uid": row.group,
        "prompts": sample.prompt_ids,
        "responses": sample.response_ids,
        "response_mask": sample.response_mask,
        "rollout_log_probs": row.log_probs(),
        "reward_score": row.reward,
        "num_turns": len(sample.turn_starts),
        "routed_experts": sample.routed_experts,
        "min_global_steps": sample.policy_version_min,
        "max_global_steps": sample.policy_version_max,
        "images": row.images(media),
    }
