"""What an engine says of errors within its answers: without secrets, wherever the bytes are cut; all else untouched."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.calls.scrub import HELD_BYTES, Scrub
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import calls, serving
from tests.proxy.wires import WIRES
from tests.proxy.wires import request as request_of

KEY = b"engine-key-7f3a9c"
MARK = b"[redacted]"
ERRORS = (
    b'data: {"error": {"message": "bad key engine-key-7f3a9c", "code": 401}}',
    b'data:{"object":"error","message":"engine-key-7f3a9c"}',
    b'event: error\ndata: {"type":"error","error":{"message":"engine-key-7f3a9c"}}',
    b'data: { "error" : "' + b"x" * 300 + b' engine-key-7f3a9c"}',
)
SAID = (
    b'data: {"id":"1","choices":[{"delta":{"content":"engine-key-7f3a9c"}}]}',
    b'data: {"choices":[{"delta":{"content":"{\\"error\\": \\"engine-key-7f3a9c\\"}"}}]}',
    b'data: {"choices":[],"error":null,"said":"engine-key-7f3a9c"}',
    b": engine-key-7f3a9c",
    b"data: [DONE]",
    b"data: " + b"y" * 500,
)
"""What is no error: the tokens' own truth, which stays."""
EVENTS = st.lists(st.sampled_from([*ERRORS, *SAID]), max_size=5)


def redact(text: bytes) -> bytes:
    return text.replace(KEY, MARK)


def passed(raw: bytes, cuts: list[int], *, whole: bool = False) -> bytes:
    scrub = Scrub(redact, whole=whole)
    places = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    return b"".join([*(scrub.feed(raw[a:b]) for a, b in pairwise(places) if a < b), scrub.end()])


@given(EVENTS, st.sampled_from([b"\n\n", b"\r\n\r\n"]), st.booleans(), st.lists(st.integers(0, 1 << 12), max_size=8))
def test_errors_alone_lose_their_secrets_however_the_stream_is_cut(
    events: list[bytes], end: bytes, ended: bool, cuts: list[int]
) -> None:
    raw = end.join(events) + end * ended
    right = end.join(redact(event) if event in ERRORS else event for event in events) + end * ended
    assert passed(raw, cuts) == right


@given(st.sampled_from([*ERRORS[:2], *SAID[:3]]), st.lists(st.integers(0, 1 << 12), max_size=8))
def test_a_whole_body_that_is_an_error_too(event: bytes, cuts: list[int]) -> None:
    body = event.partition(b":")[2]
    assert passed(body, cuts, whole=True) == (redact(body) if event in ERRORS else body)


def test_what_is_held_of_an_error_has_a_bound() -> None:
    scrub, size = Scrub(redact, whole=False), 0
    for _ in range(4 * HELD_BYTES // 1000):
        size += len(scrub.feed(b'data: {"error": "' + b"z" * 983 if not size else b"z" * 1000))
    assert size >= 2 * HELD_BYTES
    assert scrub.feed(KEY + b'"}\n\ndata: ' + KEY + b"\n\n").endswith(MARK + b'"}\n\ndata: ' + KEY + b"\n\n")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_the_engines_key_in_an_error_within_an_answer_reaches_nobody(
    tmp_path: Path, wire: str, stream: bool
) -> None:
    """Field case 188: neither its harness, nor the journal, nor the row; cut in two as well."""
    key_file = tmp_path / "key"
    key_file.write_bytes(KEY)
    error = b'{"error": {"message": "the key engine-key-7f3a9c is over quota", "type": "X", "code": 429}}'
    raw = b"data: %b\n\n" % error if stream else error
    at = raw.index(KEY) + 5
    async with serving(tmp_path, ScriptedEngine(key=KEY.decode()), upstream_key_file=key_file) as s:
        path, body = request_of(wire, stream)
        for pieces in ((raw,), (raw[:at], raw[at:])):
            s.engine.script(Turn("word", fault=Fault(raw=pieces)))
            async with s.http.post(s.proxy.base_url.removesuffix("/v1") + path, json=body) as answer:
                text = await answer.read()
                assert KEY not in text
        await s.closed(2)
        assert not [file for file in s.data.rglob("*.seg") if KEY in file.read_bytes()]
    rows = calls(s.data)
    assert KEY.decode() not in repr(rows)
    assert [row.status for row in rows] == ["error", "error"]
    assert "over quota" in str(rows[0].error), "the rest of the engine's words is kept"
