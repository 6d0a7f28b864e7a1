"""A template may only ever do what a parser would have done: over hostile texts, and over events that were spoiled."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from forge.proxy.cutter import Cutter
from forge.proxy.dialects.base import Outgoing
from forge.proxy.dialects.chat_answer import StreamAnswer
from forge.proxy.engines.base import Ask, Cut
from forge.proxy.splice import UNREADABLE
from forge.proxy.template import Template

SEED = 20261130
CUTS = (Cut(b"token_ids", b"null", b"null"), Cut(b"logprobs", b"null", b"null"))
TRAPS = (
    *('"token_ids":[1]', '","token_ids":[2],"x":"', '},"logprobs":', '"},"logprobs":{', ',"finish_reason":null,'),
    *("\\", "\\\\", '"', '\\"', "}", "]}]}", "\n", "\n\n", "\r", "data: ", "[DONE]", "漢🎉", " ", "plain"),
)
STYLES: tuple[dict[str, Any], ...] = ({"separators": (",", ":"), "ensure_ascii": False}, {"separators": (",", ":")}, {})


def text(rng: random.Random) -> str:
    return "".join(rng.choices(TRAPS, k=rng.randrange(4)))


def event(rng: random.Random, style: dict[str, Any], name: str = "content") -> bytes:
    entries = [{"token": text(rng), "logprob": -rng.random(), "bytes": [rng.randrange(256)], "top_logprobs": []}]
    choice = {
        "index": 0,
        "delta": {"role": None, name: text(rng)},
        "logprobs": {"content": entries, "token_ids": [text(rng)]},
        "finish_reason": None,
        "token_ids": [rng.randrange(151_643) for _ in range(rng.randrange(1, 3))],
    }
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, **style).encode() + b"\n\n"


def answer() -> StreamAnswer:
    ask = Ask({}, CUTS, drop_empty_chunks=True)
    return StreamAnswer(Outgoing((), False, True, ask, None, None, None, None))


def fed(one: StreamAnswer, chunk: bytes) -> bytes:
    return b"".join(piece.data for piece in one.feed(chunk))


def parsed(raw: bytes) -> bytes | None:
    """As without a template; None for what is no event with an answer."""
    try:
        document, _ = Cutter((cut.key, cut.stream) for cut in CUTS).cut(raw[6:-2])
    except UNREADABLE:
        return None
    return b"data: " + document + b"\n\n"


@pytest.mark.parametrize("style", STYLES)
def test_ten_thousand_hostile_events(style: dict[str, Any]) -> None:
    rng = random.Random(SEED)
    for _ in range(40):
        one = answer()
        for _ in range(100):
            raw = event(rng, style, rng.choice(("content", "content", "reasoning")))
            assert fed(one, raw) == parsed(raw)


def template(raw: bytes) -> Template:
    cutter = Cutter((cut.key, cut.stream) for cut in CUTS)
    document = raw[6:-2]
    _, found = cutter.cut(document)
    places = cutter.places(document, found)
    assert places is not None
    return Template(raw, [(start + 6, end + 6, instead) for start, end, instead in places])


def test_it_is_what_cuts_the_next_event() -> None:
    rng = random.Random(SEED)
    known = template(event(rng, STYLES[0]))
    for _ in range(500):
        raw = event(rng, STYLES[0])
        assert known.fill(raw) == parsed(raw)


def test_spoiled_events_are_left_to_the_parser() -> None:
    """Bytes taken out, put in, exchanged: whatever a template still takes, the parser cuts the same way."""
    rng = random.Random(SEED)
    known, taken = template(event(rng, STYLES[0])), 0
    for _ in range(20_000):
        raw = bytearray(event(rng, STYLES[0]))
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(3)] = rng.choice(TRAPS).encode()[: rng.randrange(12)]
        cut = known.fill(bytes(raw))
        if cut is not None:
            taken += 1
            assert cut == parsed(bytes(raw)), bytes(raw)
    assert taken > 500, "some are only spoiled inside a value"


def test_several_events_at_once_and_a_line_within_one_are_the_parser_s() -> None:
    rng = random.Random(SEED)
    raw = event(rng, STYLES[1])
    known = template(raw)
    assert known.fill(raw) is not None
    assert known.fill(raw + raw) is None
    assert known.fill(raw[:-2] + b"\r\n\r\n") is None
    assert known.fill(raw.replace(b'"id":"c"', b'"id":\n"c"')) is None
