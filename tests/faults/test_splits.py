"""R10: a real engine's streams, cut at every place and byte by byte, with other line ends, comments and a mark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.soak import SOAK
from tests.proxy.wire import answer, send, text
from tests.proxy.wires import WIRES
from tests.proxy.wires import request as request_of

pytestmark = pytest.mark.process

GOLDEN = Path(__file__).parents[1] / "proxy" / "golden" / "vllm-0.32.0"
STREAMS = pytest.mark.parametrize("name", ["text-stream-asked", "tool-stream-asked", "n2-stream"])
SENT = {w: send(w, json.dumps(request_of(w, True, tools=True)[1] | {"stream": True}).encode()) for w in WIRES}


def said(wire: str, *pieces: bytes) -> bytes:
    """What the client gets of an engine's stream that comes in these pieces."""
    made = answer(wire, SENT[wire])
    return text([piece for part in pieces for piece in made.feed(part)] + list(made.finish()))


@STREAMS
def test_a_real_stream_cut_anywhere_says_the_same(name: str) -> None:
    """The next place in the next dialect; in a soak every place in every one."""
    body = (GOLDEN / f"{name}.txt").read_bytes()
    whole = {wire: said(wire, body) for wire in WIRES}
    assert all(whole.values())
    for at in range(1, len(body)):
        for wire in WIRES if SOAK else WIRES[at % len(WIRES) :][:1]:
            assert said(wire, body[:at], body[at:]) == whole[wire], at
    for wire in WIRES:
        assert said(wire, *(body[at : at + 1] for at in range(len(body)))) == whole[wire]


@STREAMS
@pytest.mark.parametrize("wire", [wire for wire in WIRES if wire != "chat"])
def test_other_line_ends_comments_and_a_mark_in_front_say_the_same(wire: str, name: str) -> None:
    """Chat passes such bytes on as they are."""
    body = (GOLDEN / f"{name}.txt").read_bytes()
    odd = b"\xef\xbb\xbf" + body.replace(b"\n\n", b"\n\n: comment\n\n").replace(b"\n", b"\r\n")
    whole = said(wire, body)
    assert said(wire, odd) == whole
    assert said(wire, *(odd[at : at + 1] for at in range(len(odd)))) == whole
