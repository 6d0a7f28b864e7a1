"""The storage bars: bytes of what is recorded, and the CPU time that it takes to make them.

Owns the comparison with the limit and with what a recorder without delta prompts would write. The data goes through the
real proxy, its journal and its decoder; here only files are weighed and clocks are read.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench import process
from bench.figures import Figure, Figures, of_rounds
from bench.record import recorded
from bench.setting import Setting
from bench.trajectories import Exchange, Plan, Workload, make
from forge.proxy.process import collect_seldom
from forge.proxy.recording.decoder import Decoder
from forge.storage.dataset import Dataset

TOKENS = ("prompt_suffix_ids", "output_ids", "output_log_probs")
QUICK = Plan(sessions=2, calls=3, start=200, output=20, between=40)


def run(set_: Setting, figures: Figures) -> None:
    workload = make(QUICK if set_.quick else Plan())
    set_.say(f"storage: recording {len(workload.exchanges)} calls, {workload.new_ids:,} new ids")
    with recorded(set_, workload.exchanges, "storage", decoder=False):
        pass
    data = set_.work / "storage"
    journal = sum(path.stat().st_size for path in (data / "journal").rglob("*.seg*"))
    decode_ns: list[float] = []
    whole_ns: list[float] = []
    naive_ns: list[float] = []
    _naive(set_, workload.exchanges), _decode(set_, workload.exchanges)  # what is loaded on first use counts for none
    for number in range(set_.rounds):
        set_.say(f"storage: decoding, round {number + 1} of {set_.rounds}")
        for measured in (_decode, _naive)[:: 1 if number % 2 else -1]:
            process.real_time([os.getpid()] if set_.real_time else [], True)
            try:
                if measured is _naive:
                    naive_ns.append(_naive(set_, workload.exchanges))
                else:
                    whole, committing = _decode(set_, workload.exchanges)
                    whole_ns.append(whole)
                    decode_ns.append(whole - committing)
            finally:
                process.real_time([os.getpid()] if set_.real_time else [], False)
    decoded = set_.work / "decoded"
    _check(decoded, workload)
    _weigh(figures, workload, decoded, set_.work / "naive.parquet", journal)
    count = len(workload.exchanges)
    figures.add("decode / naive", of_rounds(decode_ns, naive_ns))
    figures.add("decode, with catalog and checkpoint / naive", of_rounds(whole_ns, naive_ns))
    figures.add("decode, µs per call", of_rounds([ns / 1000 / count for ns in decode_ns]))
    figures.add("naive decode, µs per call", of_rounds([ns / 1000 / count for ns in naive_ns]))


class _Timed(Decoder):
    """Counts apart what it does once for everything that it has decoded: catalog, checkpoint, flushes of folders."""

    committing = 0

    def _commit(self, *given: Any) -> None:
        began = time.process_time_ns()
        super()._commit(*given)
        self.committing += time.process_time_ns() - began


def _decode(set_: Setting, exchanges: Sequence[Exchange]) -> tuple[float, float]:
    """Nanoseconds of CPU: journal to ``calls``, all of it; and what of it no Parquet file needs."""
    fresh = set_.work / "decoded"
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(set_.work / "storage", fresh)
    decoder = _Timed(fresh)
    usual = gc.get_threshold()
    collect_seldom()  # as the decoder's process does
    began = time.process_time_ns()
    decoder.catch_up()
    took = time.process_time_ns() - began
    gc.set_threshold(*usual)
    gc.unfreeze()
    decoder.close()
    return took, decoder.committing


def _naive(set_: Setting, exchanges: Sequence[Exchange]) -> float:
    """The same for ``json.loads`` of both bodies, and one Parquet file with whole prompts."""
    bodies = [(bytes(e.request), bytes(e.answer)) for e in exchanges]
    began = time.process_time_ns()
    rows = [_naive_row(json.loads(request), json.loads(answer)) for request, answer in bodies]
    pq.write_table(pa.Table.from_pylist(rows, NAIVE), set_.work / "naive.parquet", compression="zstd")
    return time.process_time_ns() - began


NAIVE = pa.schema(
    {
        "prompt_ids": pa.list_(pa.int32()),
        "output_ids": pa.list_(pa.int32()),
        "output_log_probs": pa.list_(pa.float32()),
    }
)


def _naive_row(request: dict[str, object], answer: dict[str, object]) -> dict[str, object]:
    choice = answer["choices"][0]  # type: ignore[index]
    return {
        "prompt_ids": answer["prompt_token_ids"],
        "output_ids": choice["token_ids"],
        "output_log_probs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
    }


def _check(data: Path, workload: Workload) -> None:
    """Small is nothing if it is not all there: every call again, id for id, bit for bit, fit to train on."""
    found = sorted(Dataset(data).calls(), key=lambda call: call.seq)
    if len(found) != len(workload.exchanges):
        raise RuntimeError(f"{len(found)} of {len(workload.exchanges)} calls are in the dataset")
    for call, true in zip(found, workload.exchanges, strict=True):
        same = (
            np.array_equal(call.prompt_ids, true.prompt_ids)
            and np.array_equal(call.output_ids, true.output_ids)
            and np.array_equal(call.output_log_probs, true.log_probs)
        )
        if not same or not call.trainable:
            raise RuntimeError(f"call {call.call_id} is not what was said: {call.untrainable_reason}")


def _weigh(figures: Figures, workload: Workload, data: Path, naive: Path, journal: int) -> None:
    parts = sorted((data / "calls").rglob("*.parquet"))
    count = len(workload.exchanges)
    columns = dict(_column_bytes(parts))
    tokens = sum(columns[name] for name in TOKENS)
    whole = sum(path.stat().st_size for path in parts)
    figures.add("token bytes / f32 limit", Figure.exact(tokens / workload.limit))
    figures.add("token bytes / JSON lines", Figure.exact(tokens / workload.json_lines))
    figures.add("token bytes / default Parquet", Figure.exact(tokens / naive.stat().st_size))
    figures.add("limit, bytes per call", Figure.exact(workload.limit / count))
    figures.add("token bytes per call", Figure.exact(tokens / count))
    figures.add("bytes per call with texts and all columns", Figure.exact(whole / count))
    figures.add("journal bytes per call", Figure.exact(journal / count))
    figures.add("JSON lines, bytes per call", Figure.exact(workload.json_lines / count))
    largest = sorted(columns.items(), key=lambda item: -item[1])[:8]
    figures.note(
        f"{len(parts)} parts; largest columns, bytes per call: "
        + ", ".join(f"{name} {size / count:,.0f}" for name, size in largest)
        + f"; around them {(whole - sum(columns.values())) / count:,.0f}"
    )


def _column_bytes(parts: Sequence[Path]) -> Iterator[tuple[str, int]]:
    """Compressed bytes of each column over all parts."""
    sizes: dict[str, int] = {}
    for part in parts:
        about = pq.read_metadata(part)
        for group in range(about.num_row_groups):
            for index in range(about.num_columns):
                column = about.row_group(group).column(index)
                name = column.path_in_schema.partition(".")[0]
                sizes[name] = sizes.get(name, 0) + column.total_compressed_size
    yield from sizes.items()
