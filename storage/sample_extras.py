"""What a sample carries of its calls beside ids and log probs: routed experts, and the ids that a truncation kept.

Owns their alignment with the sample's ids; the decoder has checked them against each call's. Pure. The one
non-obvious fact: the last turn's experts are those of its whole sequence, so they are the row's.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

import msgspec
import numpy as np

from forge.storage.records import Call


def routed_experts(last: Call, end: int) -> bytes | None:
    """Of the first ``end`` ids of the turn's sequence, less the last of them. ``.npy``."""
    if last.routed_experts is None or end >= len(last.prompt_ids) + len(last.output_ids):
        return last.routed_experts
    found = np.load(io.BytesIO(last.routed_experts), allow_pickle=False)
    out = io.BytesIO()
    np.save(out, found[: end - 1], allow_pickle=False)
    return out.getvalue()


def sampling_mask(trained: Iterable[tuple[int, Call]], length: int) -> bytes | None:
    """JSON: the kept ids of each of ``length`` response ids; none where it is not trained, or nothing was left out.
    ``trained``: where each turn's sampled ids begin, and its call. None where no turn has any."""
    masks: list[list[int]] = [[] for _ in range(length)]
    known = False
    for start, call in trained:
        if call.sampling_mask is not None:
            known = True
            kept = msgspec.json.decode(call.sampling_mask, type=list[list[int]])[: length - start]
            masks[start : start + len(kept)] = kept
    return msgspec.json.encode(masks) if known else None
