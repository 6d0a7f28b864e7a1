"""Exactness of the byte lane: 20,000 hostile documents through the proxy, each answer compared byte for byte.

Owns the comparison. A quarter of the documents are whole bodies, the others chunks of streams.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import wire
from bench.adversary import Adversary, Pair
from bench.burst import Load, burst
from bench.figures import Figure, Figures
from bench.record import probe_answers, raw_answers
from bench.setting import Setting, stub
from bench.targets.base import PATHS
from bench.targets.ours import ours

SEED = 20261130
WHOLE = 5_000
STREAMS, CHUNKS = 1_000, 15
CLIENTS = 8
SECONDS = 300.0
SHOWN = 3


def run(set_: Setting, figures: Figures) -> None:
    adversary = Adversary(SEED)
    whole, streams = (40, 10) if set_.quick else (WHOLE, STREAMS)
    set_.say(f"strip: {whole + CHUNKS * streams:,} documents")
    bodies = [adversary.whole() for _ in range(whole)]
    chunks = [adversary.stream(CHUNKS) for _ in range(streams)]
    wrong = _differ(set_, "whole", bodies, b"application/json")
    wrong += _differ(set_, "streamed", chunks, b"text/event-stream")
    figures.add("answers that differ of 20,000", Figure.exact(len(wrong)))
    for number, pair, said in wrong[:SHOWN]:
        at = _first_difference(pair.left, said)
        here = slice(max(0, at - 40), at + 40)
        figures.note(f"document {number} from byte {at}: {said[here]!r} for {pair.left[here]!r}")
    figures.note(f"seed {SEED}; {whole:,} whole bodies, {streams:,} streams of {CHUNKS} chunks")


def _differ(set_: Setting, name: str, pairs: Sequence[Pair], kind: bytes) -> list[tuple[int, Pair, bytes]]:
    """Number, document and answer of each that is not as it must be."""
    folder = set_.work / f"{name}-answers"
    folder.mkdir()
    probe_answers(folder)
    raw_answers(folder, [(kind, pair.sent) for pair in pairs])
    body, kept = folder / "request", folder / "kept"
    mark = f" ~bench:raw:{'0' * 10}~"
    body.write_bytes(wire.chat_request([], mark, stream=name == "streamed"))
    with stub(set_, folder) as (pid, port), ours(set_, port, data=set_.work / name) as target:
        load = Load(body, PATHS["chat"], CLIENTS, len(pairs), seconds=SECONDS, keep=kept)
        burst(set_, pid, target, load, real_time=False)
    found = dict(_kept(kept))
    return [(number, pair, found[number]) for number, pair in enumerate(pairs) if found[number] != pair.left]


def _first_difference(a: bytes, b: bytes) -> int:
    same = min(len(a), len(b))
    return next((at for at in range(same) if a[at] != b[at]), same)


def _kept(path: Path) -> Iterator[tuple[int, bytes]]:
    said = path.read_bytes()
    at = 0
    while at < len(said):
        number, size = struct.unpack_from("<QQ", said, at)
        yield number, said[at + 16 : at + 16 + size]
        at += 16 + size
