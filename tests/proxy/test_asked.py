"""What an earlier request said is not parsed again, and nothing comes out different for it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.recording import asked
from forge.proxy.recording.asked import Asked, Requests
from forge.storage.media_list import media_of
from forge.storage.messages import REPLACED

LONG = {"role": "system", "content": "be good \u00e9 " + "x" * 5000}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}


def told(said: Asked) -> tuple[dict[str, bytes], str, str | None]:
    return {name: bytes(value) for name, value in said.members.items()}, said.messages, said.media


def whole(body: bytes) -> tuple[dict[str, bytes], str, str | None]:
    """By a parser that knows nothing of earlier ones."""
    return told(Requests().read(body))


MESSAGE = st.one_of(
    st.just(IMAGE),
    st.integers(0, 30),
    st.sampled_from(["x", 'a "messages":[ 1 ]', "\\", "]", "image_url"]).map(lambda t: {"role": "user", "content": t}),
)
MEMBERS = st.fixed_dictionaries(
    {}, optional={"model": st.text(max_size=3), "top_k": st.integers(0, 3), "tools": st.just([])}
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(0, 6),
            st.lists(MESSAGE, max_size=3),
            MEMBERS,
            MEMBERS,
            st.sampled_from([None, (",", ":"), (" , ", " :\n")]),
            st.booleans(),
        ),
        max_size=6,
    )
)
def test_bodies_of_a_session_are_read_as_if_each_came_first(turns: list[Any]) -> None:
    requests, histories = Requests(), [[LONG, n] for n in range(3)]
    for agent, dropped, new, before, after, separators, twice in turns:
        histories[agent] = [*histories[agent][: max(1, len(histories[agent]) - dropped)], *new]
        said = json.dumps(before | {"messages": histories[agent]} | after, separators=separators, ensure_ascii=False)
        if twice:
            said = said[:-1] + ',"messages":[1]}'
        assert told(requests.read(said.encode())) == whole(said.encode())


@pytest.mark.parametrize("dropped", range(REPLACED + 1))
def test_what_is_put_in_place_of_the_last_messages_is_all_that_is_parsed(
    dropped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Harnesses move notes of their own there."""
    history = [LONG, *({"role": "user", "content": f"turn {n}"} for n in range(REPLACED))]
    requests = Requests()
    requests.read(json.dumps({"messages": history}).encode())
    held = requests.size
    others = [{"role": "user", "content": f"other {n}"} for n in range(3)]
    body = json.dumps({"messages": [*history[: len(history) - dropped], *others], "model": "m"}).encode()
    expected = whole(body)
    monkeypatch.setattr(asked, "_whole", lambda _: pytest.fail("parsed from its beginning"))
    for _ in range(10):
        assert told(requests.read(body)) == expected
    assert requests.size < 2 * held, "it takes the place of the one that it goes on with"


@pytest.mark.parametrize(
    "tail",
    [
        b",3]}", b",34]}", b",3.5]}", b",3e1]}", b",3x]}", b",3,]}", b",3", b",3]", b"]}", b" ]}", b",3 \n, 4]}",
        b',3],"messages":[5]}', b',3],"messages":null}', b',3],"mess\\u0061ges":[5]}', b',3],"n":{"messages":[0]}}',
        b',"\xff"]}', b',3]}{"messages":[0]}',
    ],
)  # fmt: skip
def test_whatever_follows_the_known_messages(tail: bytes) -> None:
    begun = b'{"model":"m","messages":[' + json.dumps(LONG).encode()
    requests = Requests()
    assert requests.read(begun + b",3]}").messages.endswith(",3]")
    assert told(requests.read(begun + tail)) == whole(begun + tail)
    assert told(requests.read(begun + b",3" + tail)) == whole(begun + b",3" + tail)


def test_media_are_found_wherever_they_come() -> None:
    requests = Requests()
    plain: dict[str, Any] = {"role": "user", "content": "x"}
    for shown in ([plain], [plain, plain], [plain, plain, IMAGE], [plain, plain], [plain, IMAGE, plain], [IMAGE]):
        text = json.dumps([LONG, *shown])
        assert requests.read(b'{"messages":' + text.encode() + b"}").media == media_of(text)
