"""Samples as padded arrays, straight from their columns: what a training loop of one's own feeds to a model.

No Python object is made for a token and none for a row, so it keeps up with the reading of the file. Owns the shapes
and what may not be in them; it must not know how rows are chosen or weighed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forge.storage.errors import Untrainable

COLUMNS: Final = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "sample_id")
"""Of ``samples``: what ``padded`` reads."""


@dataclass(frozen=True, slots=True)
class Padded:
    """B samples, each a prompt and its response, padded on the right to the longest; T tokens wide."""

    ids: NDArray[np.int32]
    """Shape [B, T]; 0 behind a sample's end."""
    mask: NDArray[np.int8]
    """Shape [B, T]: 1 where the policy sampled the token and this row trains it."""
    log_probs: NDArray[np.float32]
    """Shape [B, T]: as recorded when they were sampled; 0 where mask is 0."""
    lengths: NDArray[np.int64]
    """Shape [B]."""


def batches(tables: Iterable[pa.Table], rows: int) -> Iterator[Padded]:
    """Every ``rows`` samples of ``Dataset.sample_tables``, in order; the last ones of a table may be fewer."""
    for table in tables:
        for start in range(0, table.num_rows, rows):
            yield padded(table.slice(start, rows))


def padded(samples: pa.Table) -> Padded:
    """Raises ``Untrainable`` where a trained token has no log prob."""
    prompts, responses, masks, scores = (_flat(samples.column(name)) for name in COLUMNS[:4])
    lengths = np.diff(prompts.ends) + np.diff(responses.ends)
    shape = (samples.num_rows, int(lengths.max(initial=0)))
    ids, mask = np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int8)
    log_probs = np.zeros(shape, dtype=np.float32)
    said = np.where(masks.values == 1, scores.values, np.float32(0))
    spans = zip(pairwise(prompts.ends.tolist()), pairwise(responses.ends.tolist()), strict=True)
    for row, ((first, last), (begin, end)) in enumerate(spans):
        middle, stop = last - first, last - first + end - begin
        ids[row, :middle] = prompts.values[first:last]
        ids[row, middle:stop] = responses.values[begin:end]
        mask[row, middle:stop] = masks.values[begin:end]
        log_probs[row, middle:stop] = said[begin:end]
    if np.isnan(said).any():
        row = int(np.flatnonzero(np.isnan(log_probs).any(axis=1))[0])
        name = samples.column("sample_id")[row].as_py()
        raise Untrainable(
            f"sample {name} has a token with mask 1 and no log prob", "rebuild the samples: forge decode --rebuild"
        )
    return Padded(ids, mask, log_probs, lengths)


class _Lists(NamedTuple):
    values: NDArray[Any]
    """Of all rows; a missing one is NaN."""
    ends: NDArray[np.int64]
    """Where each row begins, and the last one ends."""


def _flat(column: pa.ChunkedArray) -> _Lists:
    lists = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    offsets = lists.offsets.to_numpy()
    start = offsets[0] if len(offsets) else 0
    values = lists.values.slice(start, (offsets[-1] if len(offsets) else 0) - start)
    return _Lists(values.to_numpy(zero_copy_only=False), offsets - start)
