from __future__ import annotations

import json
import random
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.dialects import DIALECTS, GEMINI_ARRAY
from forge.proxy.dialects.base import Answer, Hold, Piece, Target
from forge.proxy.dialects.gemini_signature import sign, signed
from forge.proxy.sse import parse
from tests.faults.soak import examples, figures
from tests.proxy.wire import CALL_ID, answer, chunk, run, send, stream, text, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"
ROLE = chunk({"role": "assistant", "content": ""})
THINK = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}


def start(dialect: str = "gemini", *, streamed: bool = True, **members: Any) -> Answer:
    body = {"contents": [{"parts": [{"text": "hi"}]}]} | members
    return answer(dialect, send("gemini", body, target=Target("asked", stream=streamed)))


def read(pieces: list[Piece]) -> list[dict[str, Any]]:
    """Every event, as Google's readers take it: one line of data each, and the SDK's own type."""
    found = []
    for event in text(pieces).split(b"\n\n"):
        if not event:
            continue
        assert event.startswith(b"data: ")
        assert len(event.decode().splitlines()) == 1
        found.append(json.loads(parse(event + b"\n\n").data or b""))
        types.GenerateContentResponse.model_validate(found[-1])
        assert (found[-1]["responseId"], found[-1]["modelVersion"]) == (CALL_ID, "asked")
    return found


def parts(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for document in found for part in candidate(document)["content"]["parts"]]


def candidate(document: dict[str, Any]) -> dict[str, Any]:
    (only,) = document["candidates"]
    assert only["content"]["role"] == "model"
    return only  # type: ignore[no-any-return]


def call_delta(index: int, name: str | None = None, arguments: str = "", call_id: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function} | ({"id": call_id} if call_id else {})]}


def test_the_life_of_a_text() -> None:
    body = stream(ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), usage_chunk(30, 4))
    got = start()
    pieces = run(got, body)
    found = read(pieces)
    assert parts(found) == [{"text": "Hel"}, {"text": "lo"}, {"text": ""}]
    assert [candidate(document).get("finishReason") for document in found] == [None, None, "STOP"]
    assert found[-1]["usageMetadata"] == {
        "promptTokenCount": 30,
        "candidatesTokenCount": 4,
        "totalTokenCount": 34,
    }
    assert [piece.hold for piece in pieces] == [Hold.NOTHING, Hold.NOTHING, Hold.CLOSE]
    assert (got.complete, got.finish_reason, got.error) == (True, "stop", None)


def test_pieces_go_out_as_they_come_and_a_call_waits_for_the_journal() -> None:
    got = start()
    steps = [
        ROLE,
        chunk({"content": "I"}),
        chunk(call_delta(0, "run", '{"a":', call_id="x")),
        chunk(call_delta(0, arguments="\n 1}")),
        chunk(call_delta(1, "run", "", call_id="long" * 11)),
        chunk({}, "tool_calls"),
    ]
    given = [[(piece.hold, read([piece])) for piece in got.feed(stream(step, done=False))] for step in steps]
    nothing = [Hold.NOTHING]
    assert [[hold for hold, _ in step] for step in given] == [[], nothing, nothing, nothing, [Hold.DATA], [Hold.DATA]]
    assert [len(found) for step in given for _, found in step] == [1, 0, 0, 1, 1]  # a growing call is a sign of life
    made = [
        part["functionCall"]
        for step in given
        for _, found in step
        for part in parts(found)
        if len(part) == 1 and "functionCall" in part
    ]
    assert made == [
        {"name": "run", "args": {"a": 1}, "id": "x"},
        {"name": "run", "args": {}, "id": f"call_{CALL_ID}_1"},
    ]
    assert len(made[1]["id"]) <= 40
    (last,) = got.finish()
    assert (last.hold, candidate(read([last])[0])["finishReason"]) == (Hold.CLOSE, "STOP")


def test_thoughts_are_shown_where_asked_and_always_signed_on_the_first_part_behind_them() -> None:
    """Field case 110: thoughts go out as they are."""
    body = stream(
        ROLE,
        chunk({"reasoning": "I "}),
        chunk({"reasoning_content": "think"}),
        chunk({"content": "So"}),
        chunk({"content": "."}),
        chunk(call_delta(0, "run", "{}", call_id="x")),
        chunk({"reasoning": "more"}),
        chunk(call_delta(1, "run", "{}", call_id="y")),
        chunk({}, "tool_calls"),
    )
    shown = parts(read(run(start(**THINK), body)))
    assert [part["text"] for part in shown if part.get("thought")] == ["I ", "think", "more"]
    hidden = parts(read(run(start(), body)))
    signs_of_life = text(run(start(), body)).split(b"data: ")[0]
    assert signs_of_life == b"\n\n" * 2
    assert hidden == [part for part in shown if not part.get("thought")]
    assert [signed(part["thoughtSignature"]) if "thoughtSignature" in part else None for part in hidden] == [
        "I think",
        None,
        None,
        "more",
        None,
    ]
    alone = parts(read(run(start(), stream(chunk({"reasoning": "cut"}), chunk({}, "length")))))
    assert alone == [{"text": "", "thoughtSignature": sign("cut")}]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
        ("repetition", "OTHER"),
    ],
)
def test_finish_reasons(finish: str, reason: str) -> None:
    found = read(run(start(), stream(chunk({"content": "x"}), chunk({}, finish))))
    assert candidate(found[-1])["finishReason"] == reason
    assert "usageMetadata" not in found[-1]


def test_the_usage_is_the_engines_to_the_token() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }
    found = read(run(start(), stream(chunk({"content": "x"}, "stop"), {"choices": [], "usage": usage})))
    assert found[-1]["usageMetadata"] == {
        "promptTokenCount": 10,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 17,
        "cachedContentTokenCount": 4,
    }


@pytest.mark.parametrize(
    ("arguments", "finish", "reason"),
    [
        ('{"a": ', "tool_calls", "MALFORMED_FUNCTION_CALL"),
        ("[1]", "stop", "MALFORMED_FUNCTION_CALL"),
        ("<parameter=a>", "tool_calls", "MALFORMED_FUNCTION_CALL"),
        ('{"a": "cut', "length", "MAX_TOKENS"),
    ],
)
def test_arguments_that_are_no_object_are_named_and_never_repaired(arguments: str, finish: str, reason: str) -> None:
    """Field cases 97, 99, 134."""
    body = stream(ROLE, chunk(call_delta(0, "run", arguments, call_id="x")), chunk({}, finish))
    for found in (read(run(start(), body)), [json.loads(text(run(start(streamed=False), whole(body))))]):
        ended = candidate(found[-1])
        assert (ended["finishReason"], ended["finishMessage"]) == (reason, f"Malformed function call: run({arguments})")
        assert parts(found) == [{"text": ""}]


def whole(body: bytes) -> bytes:
    """The whole answer that the engine would have given in place of this stream (of one choice)."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = None, None
    for event in body.split(b"\n\n"):
        if not event.startswith(b"data: {"):
            continue
        document = json.loads(event.removeprefix(b"data: "))
        usage = document.get("usage") or usage
        for choice in document["choices"]:
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning"):
                if choice["delta"].get(name):
                    message[name] = (message.get(name) or "") + choice["delta"][name]
            for part in choice["delta"].get("tool_calls", ()):
                made = calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                made["id"] = part.get("id") or made.get("id")
                for name, value in part["function"].items():
                    made["function"][name] += value
    if calls:
        message["tool_calls"] = list(calls.values())
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"id": "x", "model": "policy", "choices": [choice], "usage": usage}).encode()


def test_line_separators_of_unicode_are_escaped() -> None:
    """JavaScript's reader stops at them."""
    body = stream(
        chunk({"content": "a\u2028b\x85c"}),
        chunk(call_delta(0, "run", '{"x": "\u2029"}', call_id="x")),
        chunk({}, "tool_calls"),
    )
    pieces = run(start(), body)
    assert b"\xe2\x80" not in text(pieces)
    assert [part.get("text") for part in parts(read(pieces))] == ["a\u2028b\x85c", None, ""]


def test_an_array_grows_element_by_element() -> None:
    body = stream(ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), usage_chunk(30, 4))
    pieces = run(start(GEMINI_ARRAY), body, cut=20)
    assert len(pieces) > 3
    found = json.loads(text(pieces))
    assert "".join(part["text"] for part in parts(found)) == "Hello"
    assert found[1:] == read(run(start(), body))
    assert DIALECTS[GEMINI_ARRAY].content_type_stream == "application/json"
    assert DIALECTS[GEMINI_ARRAY].name == "gemini"


@pytest.mark.parametrize("body", [b"", b'data: {"error":{"message":"boom"}}\n\n', b"data: nonsense\n\n"])
def test_an_array_that_fails_before_its_first_element_is_json(body: bytes) -> None:
    assert json.loads(text(run(start(GEMINI_ARRAY), body)))[-1]["error"]["code"] == 500
    for begun, opening in ((False, b""), (True, b"[{}")):
        error = DIALECTS[GEMINI_ARRAY].stream_error(code="gone", message="it is gone", begun=begun)
        assert json.loads(opening + error)[-1]["error"]["message"] == "it is gone"


def test_what_fails_ends_in_an_error_that_googles_readers_see() -> None:
    """A bare JSON object: as data of an event JavaScript's would take it for an answer."""
    for dialect in ("gemini", GEMINI_ARRAY):
        got = start(dialect)
        pieces = run(got, stream(ROLE, chunk({"content": "x"}), done=False))
        error = json.loads(pieces[-1].data) if dialect == "gemini" else json.loads(text(pieces))[-1]
        assert (error["error"]["code"], error["error"]["status"]) == (500, "INTERNAL")
        assert "broke off" in error["error"]["message"]
        assert pieces[-1].hold is Hold.CLOSE
        assert not got.complete
    in_stream = run(start(), b'data: {"error":{"message":"boom"}}\n\n')
    assert json.loads(text(in_stream))["error"]["message"] == "boom"
    bad = run(
        start(), stream(chunk(call_delta(0, "a")), chunk(call_delta(1, "b")), chunk(call_delta(0, arguments="x")))
    )
    assert "went back to a tool call" in json.loads(bad[-1].data)["error"]["message"]
    refused = json.loads(text(run(start(streamed=False), b"<html>")))["error"]
    assert (refused["code"], refused["status"]) == (502, "UNAVAILABLE")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("overflow2", "The input token count (4097) exceeds the maximum number of tokens allowed (4096). This model's"),
        ("badjson", None),
        ("nomodel", None),
    ],
)
def test_errors_of_vllm_keep_their_words(name: str, said: str | None) -> None:
    """Field case 113."""
    body = (GOLDEN / f"{name}.txt").read_bytes()
    outgoing = send("gemini", {"contents": "hi"}, target=Target("m"))
    told = json.loads(DIALECTS["gemini"].engine_error(400, body, outgoing))["error"]
    own = json.loads(body)["error"]["message"]
    assert told["message"].endswith(own)
    assert told["message"].startswith(said or own)
    assert (told["code"], told["status"]) == (400, "INVALID_ARGUMENT")
    assert re.fullmatch("[A-Z0-9_]+", told["details"][0]["reason"])


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (401, "UNAUTHENTICATED"),
        (404, "NOT_FOUND"),
        (418, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (503, "UNAVAILABLE"),
        (599, "INTERNAL"),
    ],
)
def test_statuses_have_googles_names(status: int, name: str) -> None:
    error = json.loads(DIALECTS["gemini"].error(status, code="late", message="closed", param="contents"))["error"]
    assert (error["code"], error["status"], error["message"]) == (status, name, "closed")
    assert error["details"] == [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "LATE",
            "domain": "forge",
            "metadata": {"field": "contents"},
        }
    ]


# Properties

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda v: st.lists(v, max_size=2), max_leaves=3)
ARGS = st.dictionaries(TEXT, VALUES, max_size=2)


@st.composite
def said(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """What an engine says: the assistant message, and its stream in random pieces."""
    reasoning, content = draw(st.none() | TEXT), draw(st.none() | TEXT)
    called = draw(st.lists(st.tuples(st.sampled_from(["run", "look"]), ARGS), max_size=2))
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in pieces_of(draw, reasoning or "")]
    deltas += [{"content": piece} for piece in pieces_of(draw, content or "")]
    calls = []
    for n, (name, args) in enumerate(called):
        arguments = json.dumps(args, ensure_ascii=False)
        deltas.append(call_delta(n, name, call_id=f"c{n}"))
        deltas += [call_delta(n, arguments=piece) for piece in pieces_of(draw, arguments)]
        calls.append({"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}})
    message: dict[str, Any] = {"role": "assistant", "content": content if content or calls else ""}
    message |= ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {}) | (
        {"tool_calls": calls} if calls else {}
    )
    finish = "tool_calls" if calls else "stop"
    return message, stream(*[chunk(delta) for delta in deltas], chunk({}, finish), usage_chunk(3, 4))


def pieces_of(draw: st.DrawFn, value: str) -> list[str]:
    at = sorted({0, len(value), *draw(st.lists(st.integers(0, len(value)), max_size=3))})
    return [value[start:end] for start, end in pairwise(at)]


def as_sdk(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Google's Python SDK: every chunk stays a content of its own."""
    return [candidate(document)["content"] for document in found]


def as_cli(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gemini CLI: one content, thoughts and empty texts dropped, texts that follow each other joined."""
    kept: list[dict[str, Any]] = []
    for part in parts(found):
        if part.get("thought") or (part.get("text") == "" and len(part) == 1):
            continue
        if kept and "text" in kept[-1] and "text" in part:
            kept[-1] = kept[-1] | {"text": kept[-1]["text"] + part["text"]}
        else:
            kept.append(part)
    return [{"role": "model", "parts": kept}]


@figures(60, 1250, 50_000)
def test_what_an_engine_said_comes_back_as_it_said_it(number: int) -> None:
    examples(number, st.tuples(said(), st.sampled_from([as_sdk, as_cli]), st.booleans(), st.booleans()), _comes_back)


def _comes_back(case: tuple[Any, Any, bool, bool]) -> None:
    (message, body), client, shows, streamed = case
    got = start(streamed=streamed, **(THINK if shows else {}))
    pieces = run(got, body if streamed else whole(body))
    found = read(pieces) if streamed else [json.loads(text(pieces))]
    contents = [{"role": "user", "parts": [{"text": "hi"}]}, *client(found)]
    sent = json.loads(send("gemini", {"contents": contents}, target=Target("m")).body)["messages"]
    assert sent[1:] == [message]


@settings(max_examples=25, deadline=None)
@given(said(), st.randoms(use_true_random=False))
def test_however_the_engines_bytes_are_cut_the_answer_is_the_same(spoken: Any, chance: random.Random) -> None:
    _, body = spoken
    expected = text(run(start(**THINK), body))
    assert text(run(start(**THINK), body, cut=1)) == expected
    at = chance.randrange(len(body))
    got = start(**THINK)
    pieces = [*got.feed(body[:at]), *got.feed(body[at:]), *got.finish()]
    assert text(pieces) == expected


def test_every_split_point() -> None:
    body = stream(
        ROLE,
        chunk({"reasoning": "é"}),
        chunk({"content": "漢"}),
        chunk(call_delta(0, "run", '{"a": "\u2028"}', call_id="x")),
        chunk({}, "tool_calls"),
        usage_chunk(3, 4),
    )
    expected = text(run(start(**THINK), body))
    for at in range(len(body)):
        got = start(**THINK)
        assert text([*got.feed(body[:at]), *got.feed(body[at:]), *got.finish()]) == expected


def test_two_calls_by_one_id_get_two() -> None:
    body = stream(ROLE, *(chunk(call_delta(n, "ls", "{}", "c")) for n in range(2)), chunk({}, "tool_calls"))
    ids = [part["functionCall"]["id"] for part in parts(read(run(start(), body))) if "functionCall" in part]
    assert ids == ["c", f"call_{CALL_ID}_1"]
