"""Byte edits against the plain way: decode, change, encode. The documents quote our key names wherever text can be."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy import splice
from forge.proxy.cutter import Cutter

KEYS = ("token_ids", "prompt_token_ids", "logprobs", "weight_versions")
CUTS: tuple[tuple[bytes, bytes | None], ...] = (
    (b"token_ids", b"null"),
    (b"prompt_token_ids", b"null"),
    (b"logprobs", b"null"),
    (b"weight_versions", None),
)
COMPACT = (",", ":")
SPACED = (", ", ": ")
NASTY = (
    '"token_ids":[1,2]',
    '{"prompt_token_ids":[1,2,3],"x":"',
    '"logprobs":{"content":[{"token":"',
    "]},",
    '","token_ids":[',
    'ends in "token_ids',
    'ends in \\"prompt_token_ids',
    '"',
    "\\",
    "\\\\",
    "]",
    "}]}",
    "漢字🎉",
    "\u2028\x7f",
    "\n\t",
    "weight_versions",
    "plain words ",
)


def nasty(rng: random.Random) -> str:
    return "".join(rng.choice(NASTY) for _ in range(rng.randrange(5)))


def hostile_array(rng: random.Random) -> list[Any]:
    """What stands where ids should: strings that close brackets, arrays in arrays."""
    values = [nasty(rng), "]", '],"x":1,"', [1, [2]], 3, [], {"token_ids": [1]}]
    return [rng.choice(values) for _ in range(rng.randrange(6))]


def ids(rng: random.Random, most: int = 8) -> list[int]:
    return [rng.randrange(200_000) for _ in range(rng.randrange(most))]


def log_probs(rng: random.Random, count: int) -> dict[str, Any]:
    entries = [
        {
            "token": nasty(rng),
            "logprob": -rng.random() * 10,
            "bytes": ids(rng),
            "top_logprobs": [{"token": nasty(rng), "logprob": -1.5, "bytes": None}] * rng.randrange(3),
        }
        for _ in range(count)
    ]
    return {"content": entries}


def choice(rng: random.Random, index: int, *, stream: bool) -> dict[str, Any]:
    function = {"name": "f", "arguments": json.dumps({"cmd": nasty(rng), "token_ids": ids(rng)})}
    said = {"content": nasty(rng), "reasoning": nasty(rng), "tool_calls": [{"id": "x", "function": function}]}
    output = ids(rng)
    return {
        "index": index,
        "delta" if stream else "message": said,
        "logprobs": rng.choice([None, log_probs(rng, len(output))]),
        "finish_reason": rng.choice([None, "stop"]),
        "token_ids": rng.choice([None, output, output, output, hostile_array(rng)]),
        "weight_versions": [{"version": "1", "start": 0, "end": len(output)}],
    }


def document(rng: random.Random) -> dict[str, Any]:
    stream = rng.random() < 0.5
    body: dict[str, Any] = {
        "id": nasty(rng),
        "choices": [choice(rng, n, stream=stream) for n in range(rng.choice([1, 1, 1, 2, 3]))],
        "prompt_token_ids": rng.choice([None, ids(rng), ids(rng, 3000), hostile_array(rng)]),
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    if rng.random() < 0.3:
        # The same names where they are not ours to touch.
        nested = {key: rng.choice([ids(rng), {"content": nasty(rng)}, None]) for key in rng.sample(KEYS, 2)}
        body["kv_transfer_params"] = {"deep": [nested], "logprobs": None}
    if rng.random() < 0.3:
        body["choices"][0]["stop_reason"] = rng.choice(["token_ids", "logprobs", nasty(rng)])
    for part in (body, *body["choices"]):
        for key in KEYS:
            if rng.random() < 0.2:
                part.pop(key, None)
    if rng.random() < 0.5:
        shuffled = list(body.items())
        rng.shuffle(shuffled)
        body = dict(shuffled)
    return body


def without(body: dict[str, Any]) -> dict[str, Any]:
    """The plain way."""

    def cut(part: dict[str, Any]) -> dict[str, Any]:
        return {key: None if key in KEYS else value for key, value in part.items() if key != "weight_versions"}

    return cut(body) | {"choices": [cut(part) for part in body["choices"]]}


def dump(body: dict[str, Any], separators: tuple[str, str], *, ascii: bool) -> bytes:
    return json.dumps(body, separators=separators, ensure_ascii=ascii).encode("utf-8", "surrogatepass")


def test_twenty_thousand_hostile_answers() -> None:
    rng = random.Random(20_000)
    cutter = Cutter(CUTS)
    for _ in range(10_000):
        body = document(rng)
        plain = without(body)
        plain = {key: plain[key] for key in body if key in plain}
        for separators in (COMPACT, SPACED):
            ascii = rng.random() < 0.5
            written = dump(body, separators, ascii=ascii)
            got, found = cutter.cut(written)
            assert got == dump(plain, separators, ascii=ascii), written
            assert [choice.index for choice in found.choices] == [choice["index"] for choice in body["choices"]]


def test_large_id_arrays_are_folded_away_and_small_ones_next_to_them_too() -> None:
    body = {"choices": [{"index": 0, "token_ids": list(range(2000))}], "prompt_token_ids": list(range(50_000))}
    got, _ = Cutter(CUTS).cut(dump(body, COMPACT, ascii=True))
    assert got == b'{"choices":[{"index":0,"token_ids":null}],"prompt_token_ids":null}'


def test_a_large_array_of_the_same_name_elsewhere_is_left_alone() -> None:
    own = {"choices": [{"index": 0, "token_ids": [1]}], "prompt_token_ids": [2]}
    places: list[dict[str, Any]] = [{"params": {"prompt_token_ids": list(range(5000))}}, {"x": [[list(range(5000))]]}]
    for place in places:
        bodies: list[dict[str, Any]] = [own | place, place | own, place | {"choices": []}]
        for body in bodies:
            got, _ = Cutter(CUTS).cut(dump(body, COMPACT, ascii=True))
            assert got == dump({key: without(body)[key] for key in body}, COMPACT, ascii=True)


@pytest.mark.parametrize("white", [" ", "\n ", "\t\r\n"])
def test_white_space_anywhere(white: str) -> None:
    parts = [
        "{",
        '"choices"',
        ":",
        "[",
        "{",
        '"index"',
        ":",
        "0",
        ",",
        '"weight_versions"',
        ":",
        "[",
        "]",
        ",",
        '"token_ids"',
    ]
    parts += [":", "[", "1", ",", "2", "]", "}", "]", "}"]
    written = white.join(parts).encode()
    got, _ = Cutter(CUTS).cut(written)
    assert json.loads(got) == {"choices": [{"index": 0, "token_ids": None}]}
    assert got.startswith(white.join(parts[:8]).encode())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (b'{"weight_versions":1}', b"{}"),
        (b'{"a":1,"weight_versions":[{"x":"]"}]}', b'{"a":1}'),
        (b'{"weight_versions":1,"a":1}', b'{"a":1}'),
        (b'{"a":1,"weight_versions":1,"b":2}', b'{"a":1,"b":2}'),
        (b'{"a":1, "weight_versions" : 1 , "b":2}', b'{"a":1 , "b":2}'),
        (b'{"choices":[{"weight_versions":1},{"weight_versions":2}]}', b'{"choices":[{},{}]}'),
        (b'{"weight\\u005fversions":1,"a":2}', b'{"a":2}'),
    ],
)
def test_taking_a_member_out(written: bytes, expected: bytes) -> None:
    assert Cutter(CUTS).cut(written)[0] == expected


def test_taking_two_neighbours_out() -> None:
    cutter = Cutter([(b"a", None), (b"b", None)])
    assert cutter.cut(b'{"a":1,"b":2,"c":3}')[0] == b'{"c":3}'
    assert cutter.cut(b'{"c":3,"a":1,"b":2}')[0] == b'{"c":3}'
    assert cutter.cut(b'{"b":2,"a":1}')[0] == b"{}"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"nonsense", b'{"choices":', b'{"choices":[1]}', b'"text"', b"[" * 100_000]
)
def test_what_is_no_answer_raises_one_of_the_named_errors(body: bytes) -> None:
    with pytest.raises(splice.UNREADABLE):
        Cutter(CUTS).cut(body)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=5)


@given(objects, st.dictionaries(st.text(max_size=6), json_values, max_size=3), st.sampled_from([None, 2]))
def test_append_and_rebuild(body: dict[str, Any], more: dict[str, Any], indent: int | None) -> None:
    written = json.dumps(body, indent=indent).encode() + b" \n"
    added = {name: json.dumps(value).encode() for name, value in more.items()}
    grown = splice.append(written, added)
    assert json.loads(grown) == body | more
    assert not more or grown.startswith(written.rstrip()[:-1])
    assert json.loads(splice.rebuild(splice.members(grown))) == body | more


def test_of_duplicates_the_last_counts_as_it_does_for_the_engine() -> None:
    assert {name: bytes(raw) for name, raw in splice.members(b'{"n":1,"n":2}').items()} == {"n": b"2"}
