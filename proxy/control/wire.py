"""JSON of the control plane: records with token arrays out and in. A missing log prob is null, never 0."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from aiohttp import web

from forge.storage.records import Call, Sample
from forge.storage.rows import to_batch

ARROW = "application/vnd.apache.arrow.stream"
_SAMPLE_ARRAYS = {
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "response_mask": np.int8,
    "rollout_log_probs": np.float32,
}
_CALL_ARRAYS = {
    "prompt_ids": np.int32,
    "prompt_log_probs": np.float32,
    "output_ids": np.int32,
    "output_log_probs": np.float32,
}


def encode(value: object) -> bytes:
    """msgspec writes NaN as null."""
    return msgspec.json.encode(value, enc_hook=_plain)


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(type(value).__name__)


def reply(value: object, status: int = 200) -> web.Response:
    return web.Response(body=encode(value), status=status, content_type="application/json")


def error(status: int, code: str, message: str, hint: str = "") -> web.Response:
    return reply({"error": {"code": code, "message": message, "hint": hint}}, status)


def arrow(samples: Sequence[Sample]) -> bytes:
    """An Arrow IPC stream with the schema of the samples table."""
    batch = to_batch("samples", samples)
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def sample(values: Mapping[str, Any]) -> Sample:
    return Sample(**_arrays(values, _SAMPLE_ARRAYS))


def call(values: Mapping[str, Any]) -> Call:
    """``request_raw`` and its like travel as base64 and stay text here."""
    return Call(**_arrays(values, _CALL_ARRAYS))


def _arrays(values: Mapping[str, Any], dtypes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(v, dtype=dtypes[name]) if name in dtypes else v for name, v in values.items()}
