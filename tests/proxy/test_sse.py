from __future__ import annotations

import itertools

import pytest
from hypothesis import strategies as st

from forge.proxy.sse import Event, EventTooLarge, Splitter, parse
from tests.faults.soak import examples, figures

LINE_ENDS = ("\n", "\r\n", "\r")


def split(body: bytes, cuts: list[int] | None = None) -> tuple[list[Event], bytes]:
    splitter = Splitter()
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts or []), len(body)]
    found: list[Event] = []
    for start, end in itertools.pairwise(bounds):
        found += splitter.feed(body[start:end])
    return found, splitter.rest


def said(found: list[Event]) -> list[tuple[bytes, bytes]]:
    return [(event.name, event.data) for event in found if event.data is not None]


texts = st.text(st.characters(exclude_characters="\r\n\ufeff", exclude_categories=["Cs"]), max_size=12)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """A stream in one way of ending lines, and what it says."""
    end = draw(st.sampled_from(LINE_ENDS))
    body = draw(st.sampled_from(["", "\ufeff"]))
    expected: list[tuple[bytes, bytes]] = []
    for _ in range(draw(st.integers(0, 6))):
        kind = draw(st.sampled_from(["data", "data", "lines", "comment", "named"]))
        lines = [draw(texts) for _ in range(draw(st.integers(2, 3)) if kind == "lines" else 1)]
        if kind == "comment":
            body += f": {lines[0]}{end}{end}"
            continue
        name = "response.created" if kind == "named" else ""
        body += f"event: {name}{end}" if name else ""
        body += "".join(f"data: {line}{end}" for line in lines) + end
        expected.append((name.encode(), "\n".join(lines).encode()))
    return body.encode(), expected


@figures(100, 1000, 100_000)
def test_any_cut_gives_the_same_events_and_keeps_every_byte(number: int) -> None:
    examples(number, st.tuples(streams(), st.lists(st.integers(0, 200), max_size=12)), _cut)


def _cut(case: tuple[tuple[bytes, list[tuple[bytes, bytes]]], list[int]]) -> None:
    (body, expected), cuts = case
    found, rest = split(body, cuts)
    assert said(found) == expected
    assert b"".join(event.raw for event in found) + rest == body
    for event in found:
        if event.start >= 0 and event.data is not None:
            assert event.raw[event.start : event.start + len(event.data)] == event.data


@pytest.mark.parametrize("end", LINE_ENDS)
def test_every_single_cut(end: str) -> None:
    body = f'data: {{"a":"漢字 🎉"}}{end}{end}: ping{end}{end}event: x{end}data: 1{end}data: 2{end}{end}'.encode()
    whole = said(split(body)[0])
    assert whole == [(b"", '{"a":"漢字 🎉"}'.encode()), (b"x", b"1\n2")]
    for cut in range(len(body)):
        found, rest = split(body, [cut])
        assert said(found) == whole
        assert b"".join(event.raw for event in found) + rest == body
    assert said(split(body, list(range(len(body))))[0]) == whole


def test_an_event_comes_with_its_last_byte() -> None:
    splitter = Splitter()
    assert splitter.feed(b"data: 1\n") == []
    assert [event.data for event in splitter.feed(b"\n")] == [b"1"]
    # A CR may be the whole line end: waiting for a LF after it would hold the event back.
    assert [event.data for event in splitter.feed(b"data: 2\r\r")] == [b"2"]
    assert [event.data for event in splitter.feed(b"data: 3\r\n\r")] == [b"3"]
    assert [event.data for event in splitter.feed(b"\ndata: 4\r\n\r\n")] == [b"4"]


def test_a_large_event_is_whole_and_a_larger_one_is_refused() -> None:
    splitter = Splitter(cap=1 << 20)
    body = b"data: [" + b"1," * 400_000 + b"1]\n\n"
    found = [event for at in range(0, len(body), 65536) for event in splitter.feed(body[at : at + 65536])]
    assert [len(event.raw) for event in found] == [len(body)]
    splitter.feed(b"x" * (1 << 20))
    with pytest.raises(EventTooLarge, match="1 MiB"):
        splitter.feed(b"x")


def test_small_chunks_of_a_large_event_cost_no_more_than_they_must() -> None:
    """Quadratic searching would take minutes here."""
    splitter = Splitter()
    for _ in range(200_000):
        assert splitter.feed(b"123456789,") == []
    assert len(splitter.feed(b"\n\n")) == 1


@pytest.mark.parametrize(
    ("raw", "data", "name"),
    [
        (b"data: 1\n\n", b"1", b""),
        (b"data:1\n\n", b"1", b""),
        (b"data:  1\n\n", b" 1", b""),
        (b"data\n\n", b"", b""),
        (b"data:\n\n", b"", b""),
        (b": only a comment\n\n", None, b""),
        (b"\n", None, b""),
        (b"id: 7\nretry: 10\ndata: 1\n\n", b"1", b""),
        (b"data: 1\nevent: x\n\n", b"1", b"x"),
        (b"database: no\n\n", None, b""),
        (b'data: {"a":"x\rx"}\n\n', b'{"a":"x', b""),
    ],
)
def test_fields(raw: bytes, data: bytes | None, name: bytes) -> None:
    event = parse(raw)
    assert (event.data, event.name) == (data, name)


def test_other_data_in_the_same_event() -> None:
    assert (
        parse(b"event: x\r\ndata: old\r\nid: 7\r\n\r\n").with_data(b"new") == b"event: x\r\ndata: new\r\nid: 7\r\n\r\n"
    )
    several = parse(b"event: x\ndata: a\ndata: b\n\n")
    assert parse(several.with_data(b"c\nd")) == Event(b"event: x\ndata: c\ndata: d\n\n", b"c\nd", b"x")


def test_the_last_event_of_a_stream_that_just_ends() -> None:
    splitter = Splitter()
    splitter.feed(b"data: 1\n\ndata: [DONE]")
    last = splitter.last()
    assert last is not None
    assert last.data == b"[DONE]"
    assert splitter.last() is None
