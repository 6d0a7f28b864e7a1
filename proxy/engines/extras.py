"""What an engine says of an answer beside ids and log probs: scores of the prompt, routed experts, kept ids.

Owns each one's shape and its check against the ids: what does not fit them is left out whole, never cut or filled.
The non-obvious facts: experts are given for every token but the last, which went through no layer; vLLM writes them
as a ``.npy`` file with a shape, SGLang as bare int32 whose layers and experts no answer tells apart.
"""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from forge.storage.records import Ids, LogProbs, empty_log_probs

MISSING: Final = -9999.0
_NPY: Final = b"\x93NUMPY"
_SMALL: Final = (np.uint8, np.uint16, np.int32)


class _Score(msgspec.Struct):
    logprob: float | None = None


def prompt_log_probs(scores: Any, ids: Ids) -> LogProbs:
    """From an object of each position by id (null at the first); empty where they are not those of ``ids``."""
    if not isinstance(scores, list) or not len(ids) or len(scores) != len(ids):
        return empty_log_probs()
    found = np.full(len(ids), np.nan, dtype=np.float32)
    try:
        for at, (token, given) in enumerate(zip(ids.tolist(), scores, strict=True)):
            if given is not None:
                value = msgspec.convert(given[str(token)], _Score).logprob
                found[at] = np.nan if value is None or value <= MISSING else value
    except (KeyError, TypeError, msgspec.ValidationError):
        return empty_log_probs()
    return found


def routed_experts(text: Any, count: int) -> bytes | None:
    """A ``.npy`` of small whole numbers, [tokens, layers, experts], of ``count`` ids less the last; [tokens, layers x
    experts] where the engine tells no shape."""
    if not isinstance(text, str) or count < 2:
        return None
    try:
        data = base64.b64decode(text, validate=True)
        experts = np.load(io.BytesIO(data), allow_pickle=False) if data.startswith(_NPY) else _bare(data, count - 1)
    except (binascii.Error, ValueError, OSError, EOFError):
        return None
    if len(experts) != count - 1 or not experts.size or experts.ndim not in (2, 3) or experts.dtype.kind not in "iu":
        return None
    if experts.min() < 0:
        return None
    kind = next(kind for kind in _SMALL if experts.max() <= np.iinfo(kind).max)
    out = io.BytesIO()
    np.save(out, experts.astype(kind), allow_pickle=False)
    return out.getvalue()


def _bare(data: bytes, rows: int) -> NDArray[np.int32]:
    """Raises ``ValueError`` where that many rows do not come out even."""
    return np.frombuffer(data, dtype="<i4").reshape(rows, -1)


def sampling_mask(kept: Any, ids: Ids) -> bytes | None:
    """JSON: for each sampled id the ids that it was sampled from, itself among them."""
    if not isinstance(kept, list) or not len(ids) or len(kept) != len(ids):
        return None
    try:
        masks = msgspec.convert(kept, list[list[int]])
    except msgspec.ValidationError:
        return None
    if any(token not in mask for token, mask in zip(ids.tolist(), masks, strict=True)):
        return None
    return msgspec.json.encode(masks)
