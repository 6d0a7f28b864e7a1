"""What the model-free checks keep of each call: lengths, digests, places. Read from narrow columns, part by part.

Not obvious: ids and log probs are kept as one digest, so a run of any size fits; a training row that cuts a turn
short is compared by length alone there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forge.storage.dataset import Dataset
from forge.storage.samples import LOG_PROB_SLACK

COLUMNS: Final = (
    *("call_id", "choice", "seq", "session_id", "status", "kind", "dialect", "harness", "media", "trainable"),
    *("untrainable_reason", "prompt_len", "prompt_hash", "prompt_tokens", "completion_tokens", "output_ids"),
    *("output_log_probs", "policy_version_start", "policy_version_end", "version_spans", "weight_digest"),
    *("start_time", "replica"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One row of ``calls``, less its tokens."""

    call_id: str
    choice: int
    seq: int
    session_id: str
    status: str
    kind: str
    dialect: str
    harness: str | None
    media: str | None
    trainable: bool
    untrainable_reason: str | None
    prompt_len: int
    prompt_hash: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    policy_version_start: int | None
    policy_version_end: int | None
    version_spans: str | None
    weight_digest: str | None
    replica: str
    start_us: int
    output_len: int
    log_probs_len: int
    unsound: int
    """Log probs that are missing, not finite or above zero."""
    zeros: int
    """Longest stretch of log probs of exactly 0."""
    digest: bytes
    """Of the output's ids and log probs."""


def facts_of(dataset: Dataset, run_id: str) -> Iterator[Facts]:
    for table in dataset.call_tables(COLUMNS, run_id):
        ids = _arrays(table.column("output_ids"), np.int32)
        log_probs = _arrays(table.column("output_log_probs"), np.float32)
        starts = table.column("start_time").cast(pa.int64()).to_pylist()
        plain = table.drop_columns(["output_ids", "output_log_probs", "start_time"]).to_pylist()
        for row, own, given, start in zip(plain, ids, log_probs, starts, strict=True):
            yield Facts(
                **row,
                start_us=start,
                output_len=len(own),
                log_probs_len=len(given),
                unsound=int((~(np.isfinite(given) & (given <= LOG_PROB_SLACK))).sum()),
                zeros=longest_zeros(given),
                digest=digest(own, given),
            )


def digest(ids: NDArray[Any], log_probs: NDArray[Any]) -> bytes:
    """Equal for equal ids and log probs, a missing one being equal to itself."""
    found = hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=16)
    found.update(np.nan_to_num(np.asarray(log_probs, dtype="<f4"), nan=1.0).tobytes())
    return found.digest()


def longest_zeros(log_probs: NDArray[Any]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], log_probs == 0.0, [False]))))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def _arrays(column: pa.ChunkedArray, dtype: type[np.generic]) -> Iterator[NDArray[Any]]:
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        yield from (values[start:end] for start, end in pairwise(chunk.offsets.to_numpy()))
