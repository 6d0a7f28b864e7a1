"""A workload through the real thing: scripted answers, the real proxy, its journal on disk.

Owns how exchanges become files of the stub and calls of a harness. What is made of the journal is asked elsewhere.
"""

from __future__ import annotations

import http.client
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import process, wire
from bench.setting import Setting, stub
from bench.targets.ours import Ours, ours
from bench.trajectories import Exchange
from bench.words import Words

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"


def probe_answers(folder: Path) -> None:
    """What a proxy hears when it asks what the policy server can do."""
    words = Words(1)
    prompt, output = words.ids(8), words.ids(4)
    log_probs = words.log_probs(4)
    (folder / "probe.json").write_bytes(wire.answer(words, prompt, output, log_probs))
    (folder / "probe_s.sse").write_bytes(wire.stream(words, prompt, output, log_probs))


def raw_answers(folder: Path, answers: Sequence[tuple[bytes, bytes]]) -> None:
    """(content type, body) by number, as ``~bench:raw:NUMBER~`` asks for them."""
    at = 0
    with (folder / "raw.bin").open("wb") as blob, (folder / "raw.idx").open("wb") as index:
        for kind, body in answers:
            whole = HEAD % (kind, len(body)) + body
            index.write(struct.pack("<QQ", at, len(whole)))
            at += blob.write(whole)


@contextmanager
def recorded(
    set_: Setting, exchanges: Sequence[Exchange], name: str, *, decoder: bool
) -> Iterator[tuple[Ours, list[str]]]:
    """The proxy once every exchange has been a call, and its sessions, which are still open."""
    folder = set_.work / f"{name}-answers"
    folder.mkdir()
    probe_answers(folder)
    raw_answers(folder, [(b"application/json", exchange.answer) for exchange in exchanges])
    with (
        stub(set_, folder) as (_, port),
        ours(set_, port, data=set_.work / name, decoder=decoder) as target,
    ):
        process.pin(target.pids(), set_.target_cores)
        tickets = [target.open() for _ in range(1 + max(exchange.session for exchange in exchanges))]
        connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=60)
        for number, exchange in enumerate(exchanges):
            key = tickets[exchange.session]["api_key"]
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", exchange.request, headers)
            reply = connection.getresponse()
            said = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"call {number}: {reply.status}: {said[:200]!r}")
        connection.close()
        yield target, [ticket["session_id"] for ticket in tickets]
