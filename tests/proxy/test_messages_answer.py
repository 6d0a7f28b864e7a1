from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import Answer, Hold, Piece
from forge.proxy.dialects.messages_blocks import sign
from tests.proxy.wire import CALL_ID, answer, chunk, events, run, send, stream, text, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"
EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
ROLE = chunk({"role": "assistant", "content": ""})


def start(**members: Any) -> Answer:
    request = {"model": "asked", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    return answer("messages", send("messages", request | members))


def read(pieces: list[Piece]) -> list[dict[str, Any]]:
    """Every event, checked: the SDK's own type takes it, its name is its type, blocks come one by one."""
    found: list[dict[str, Any]] = []
    open_block: int | None = None
    blocks = 0
    for event in events(text(pieces)):
        document = json.loads(event.data or b"")
        found.append(document)
        kind = document["type"]
        assert event.name.decode() == kind
        if kind == "error":
            continue
        EVENT.validate_python(document, strict=True)
        if kind == "content_block_start":
            assert open_block is None
            assert document["index"] == blocks
            open_block, blocks = blocks, blocks + 1
        elif kind == "content_block_delta":
            assert document["index"] == open_block
        elif kind == "content_block_stop":
            assert document["index"] == open_block
            open_block = None
    assert found[0]["type"] == "message_start"
    return found


def names(found: list[dict[str, Any]]) -> list[str]:
    return [document["type"] for document in found]


def final(found: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together."""
    message: dict[str, Any] = json.loads(json.dumps(found[0]["message"]))
    inputs: dict[int, str] = {}
    for document in found:
        if document["type"] == "content_block_start":
            message["content"].append(dict(document["content_block"]))
        elif document["type"] == "content_block_delta":
            block, delta = message["content"][document["index"]], document["delta"]
            if delta["type"] == "input_json_delta":
                inputs[document["index"]] = inputs.get(document["index"], "") + delta["partial_json"]
            else:
                name = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
                block[name[delta["type"]]] += delta[name[delta["type"]]]
        elif document["type"] == "message_delta":
            message |= document["delta"]
            message["usage"] |= document["usage"]
    for place, arguments in inputs.items():
        message["content"][place]["input"] = json.loads(arguments)
    return message


def call_delta(index: int, name: str | None = None, arguments: str = "", call_id: str | None = None) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function} | ({"id": call_id} if call_id else {})]}


def test_the_life_of_a_text() -> None:
    """Field case 108: the order and shape of events, the stop reason last."""
    body = stream(
        ROLE | {"prompt_token_ids": list(range(30))},
        chunk({"content": "Hel"}),
        chunk({"content": "lo"}),
        chunk({}, "stop"),
        usage_chunk(30, 4),
    )
    got = start()
    found = read(run(got, body))
    assert names(found) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert got.complete
    message = found[0]["message"]
    assert (message["id"], message["model"], message["stop_reason"]) == (f"msg_{CALL_ID}", "asked", None)
    assert message["usage"]["input_tokens"] == 30
    assert found[1]["content_block"] == {"type": "text", "text": ""}
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"] == {
        "input_tokens": 30,
        "output_tokens": 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def test_parallel_calls_have_a_block_each_and_their_input_comes_in_deltas_only() -> None:
    """Field case 112: one block per call, none inside another."""
    body = stream(
        ROLE,
        chunk({"content": "I run"}),
        chunk(call_delta(0, "bash", call_id="call-1")),
        chunk(call_delta(0, arguments='{"cmd":')),
        chunk(call_delta(0, arguments='"ls 漢字 🎉"}')),
        chunk(call_delta(1, "bash", '{"x": 1}', call_id="call-2")),
        chunk({}, "tool_calls"),
        usage_chunk(),
    )
    found = read(run(start(), body))
    opened = [document["content_block"] for document in found if document["type"] == "content_block_start"]
    assert opened[1:] == [
        {"type": "tool_use", "id": "call-1", "name": "bash", "input": {}},
        {"type": "tool_use", "id": "call-2", "name": "bash", "input": {}},
    ]
    deltas = [document["delta"] for document in found if document["type"] == "content_block_delta"]
    assert [delta["partial_json"] for delta in deltas[1:]] == ['{"cmd":', '"ls 漢字 🎉"}', '{"x": 1}']
    message = final(found)
    assert message["stop_reason"] == "tool_use"
    assert [block.get("input") for block in message["content"]] == [None, {"cmd": "ls 漢字 🎉"}, {"x": 1}]


def test_thinking_is_signed_the_same_each_time_and_never_altered() -> None:
    """Field cases 109 and 110: a stable opaque signature, and thinking as the engine wrote it."""
    body = stream(
        ROLE, chunk({"reasoning": " I "}), chunk({"reasoning_content": "think\n"}), chunk({"content": "A"}, "stop")
    )
    found = read(run(start(), body))
    thinking, said = final(found)["content"]
    assert thinking == {"type": "thinking", "thinking": " I think\n", "signature": sign(" I think\n")}
    assert said["text"] == "A"
    assert read(run(start(), body)) == found
    assert sign("a") != sign("b")


@pytest.mark.parametrize("kind", ["text", "tool"])
@pytest.mark.parametrize("cut", [1, 50, 1 << 20])
def test_real_answers_streamed_and_whole_are_the_same_message(kind: str, cut: int) -> None:
    streamed = final(read(run(start(), (GOLDEN / f"{kind}-stream-asked.txt").read_bytes(), cut=cut)))
    got = start(stream=False)
    (piece,) = run(got, (GOLDEN / f"{kind}-whole-asked.txt").read_bytes(), cut=cut)
    complete = json.loads(piece.data)
    Message.model_validate(complete, strict=True)
    assert piece.hold is Hold.CLOSE
    assert got.complete
    for message in (streamed, complete):
        for block in message["content"]:
            block.pop("id", None)
    assert streamed == complete
    assert streamed["usage"]["input_tokens"] > 0


FULL = stream(
    ROLE | {"prompt_token_ids": [1, 2, 3]},
    chunk({"reasoning": "Hm 🎉"}),
    chunk({"content": "I run 漢字"}),
    chunk(call_delta(0, "bash", '{"cmd": "ls', call_id="a")),
    chunk(call_delta(0, arguments=' 漢"}')),
    chunk(call_delta(1, "bash", "{}", call_id="b")),
    chunk({}, "tool_calls"),
    usage_chunk(),
)


@pytest.mark.parametrize("cut", range(1, 40))
def test_however_the_bytes_are_cut_the_events_are_the_same(cut: int) -> None:
    assert text(run(start(), FULL, cut=cut)) == text(run(start(), FULL))


@given(st.lists(st.integers(0, len(FULL)), max_size=6))
def test_any_cuts(cuts: list[int]) -> None:
    got = start()
    pieces: list[Piece] = []
    places = [0, *sorted(cuts), len(FULL)]
    for here, there in pairwise(places):
        pieces += got.feed(FULL[here:there])
    pieces += got.finish()
    assert text(pieces) == text(run(start(), FULL))


def test_what_a_harness_can_act_on_waits_for_the_journal_and_the_end_for_the_close() -> None:
    got = start()
    holds = [[piece.hold.name for piece in got.feed(event.raw)] for event in events(FULL)]
    assert holds == [
        ["NOTHING"],
        ["NOTHING"] * 2,
        ["NOTHING"] * 4,
        ["NOTHING"] * 3,
        ["NOTHING"],
        ["DATA", "NOTHING", "NOTHING"],
        ["DATA"],
        [],
        [],
    ]
    assert [piece.hold for piece in got.finish()] == [Hold.CLOSE] * 2
    for piece in run(start(), FULL):
        for event in events(piece.data):
            if event.name in (b"message_delta", b"message_stop"):
                assert piece.hold is Hold.CLOSE


def test_ids_are_stable_and_short_and_the_engines_own_where_clients_can_take_them() -> None:
    ids = ["chatcmpl-tool-" + "0" * 60, "functions.bash:0", "functions.bash:0", "with blank", None, "call_1"]
    body = stream(
        *[chunk(call_delta(n, "bash", call_id=given)) for n, given in enumerate(ids)], chunk({}, "tool_calls")
    )
    first, second = (read(run(start(), body)) for _ in range(2))
    assert first == second
    made = [block["id"] for block in final(first)["content"]]
    assert (made[1], made[5]) == ("functions.bash:0", "call_1")
    assert [made[n] for n in (0, 2, 3, 4)] == [f"toolu_{CALL_ID}_{n}" for n in (0, 2, 3, 4)]
    assert all(len(one) <= 40 for one in made)


@pytest.mark.parametrize(
    ("finish", "matched", "calls", "expected"),
    [
        ("stop", None, 0, ("end_turn", None)),
        ("stop", "STOP", 0, ("stop_sequence", "STOP")),
        ("stop", "the run's own", 0, ("end_turn", None)),
        ("stop", 151645, 0, ("end_turn", None)),
        ("length", None, 0, ("max_tokens", None)),
        ("length", None, 1, ("max_tokens", None)),
        ("tool_calls", None, 1, ("tool_use", None)),
        ("stop", None, 1, ("tool_use", None)),
        ("content_filter", None, 0, ("refusal", None)),
    ],
)
@pytest.mark.parametrize("member", ["stop_reason", "matched_stop"])
def test_stop_reasons(finish: str, matched: Any, calls: int, expected: tuple[str, str | None], member: str) -> None:
    """Field case 107: a matched stop string is named."""
    deltas = [chunk(call_delta(n, "bash", "{}")) for n in range(calls)]
    body = stream(ROLE, *deltas, chunk({"content": "" if calls else "a"}, finish, **{member: matched}), usage_chunk())
    message = final(read(run(start(stop_sequences=["STOP"]), body)))
    assert (message["stop_reason"], message["stop_sequence"]) == expected


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 80}}, {"input_tokens": 20, "cache_read_input_tokens": 80}),
        ({"prompt_tokens_details": {"cached_tokens": None}}, {"input_tokens": 100, "cache_read_input_tokens": 0}),
        ({"completion_tokens_details": {"reasoning_tokens": 3}}, {"output_tokens_details": {"thinking_tokens": 3}}),
    ],
)
def test_usage_is_the_engines_own(details: dict[str, Any], expected: dict[str, Any]) -> None:
    """Field case 116: harnesses compact by it."""
    usage = usage_chunk(100, 7)
    usage["usage"] |= details
    told = final(read(run(start(), stream(ROLE, chunk({"content": "a"}, "stop"), usage))))["usage"]
    assert told | expected == told
    assert told["output_tokens"] == 7


def test_nothing_said_is_a_message_all_the_same() -> None:
    message = final(read(run(start(), stream(ROLE, chunk({}, "stop")))))
    assert (message["stop_reason"], message["content"]) == ("end_turn", [])


@pytest.mark.parametrize(
    ("arguments", "input_"),
    [
        ('{"n": 1.0}', {"n": 1.0}),
        ("", {}),
        ('{"cmd": "l', {"__unparsedToolInput": {"raw": '{"cmd": "l'}}),
        ("[1]", {"__unparsedToolInput": {"raw": "[1]"}}),
    ],
)
def test_a_whole_answer_never_repairs_an_input(arguments: str, input_: Any) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    (piece,) = run(start(stream=False), json.dumps({"choices": [choice]}).encode())
    assert json.loads(piece.data)["content"] == [{"type": "tool_use", "id": "a", "name": "bash", "input": input_}]


@pytest.mark.parametrize("arguments", ['{"cmd": "l', "[1]", '"\\ud83d"', "null", '{"__unparsedToolInput": 1}'])
def test_an_input_that_is_no_object_comes_back_as_it_was_sampled(arguments: str) -> None:
    """The next prompt begins with this one: what the policy wrote is not written anew."""
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    choice = {"index": 0, "message": {"role": "assistant", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    (piece,) = run(start(stream=False), json.dumps({"choices": [choice]}).encode())
    said = {"role": "assistant", "content": json.loads(piece.data)["content"]}
    outgoing = send("messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "go"}, said]})
    assert json.loads(outgoing.body)["messages"][-1]["tool_calls"] == [call]


@pytest.mark.parametrize("upto", range(0, len(FULL) - 14, 29))
def test_a_stream_that_breaks_off_anywhere_fails_in_words(upto: int) -> None:
    got = start()
    found = read(run(got, FULL[:upto]))
    finished = got.finish_reason is not None
    assert names(found)[-1] == ("message_stop" if finished else "error")
    assert got.complete == finished
    if not finished:
        assert found[-1]["error"]["type"] == "api_error"
        assert "broke off" in found[-1]["error"]["message"]
        assert "message_delta" not in names(found)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (stream(chunk({"content": "a"}), {"error": {"message": "CUDA error", "code": 500}}), "CUDA error"),
        (stream(chunk({"content": "a"})) + b"data: nonsense\n\n", "cannot be read"),
        (b"<html>not a stream</html>", "broke off"),
        (b'{"error":{"message":"no such model","code":404}}', "no such model"),
        (stream(*(chunk(call_delta(n, "f")) for n in (0, 1, 0))), "went back to a tool call"),
        (stream(chunk({"content": "a"}), chunk({}, "abort")), "aborted"),
    ],
)
def test_what_goes_wrong_is_told(body: bytes, words: str) -> None:
    got = start()
    found = read(run(got, body))
    assert names(found)[-1] == "error"
    assert words in found[-1]["error"]["message"]
    whole = start(stream=False)
    (piece,) = run(whole, body)
    assert json.loads(piece.data)["type"] == "error"
    assert not whole.complete


def test_an_abort_ends_no_tool() -> None:
    found = read(run(start(), stream(chunk(call_delta(0, "bash", "{", call_id="x")), chunk({}, "abort"))))
    assert "content_block_stop" not in names(found)


def test_a_whole_body_where_a_stream_was_due_is_streamed() -> None:
    found = read(run(start(), (GOLDEN / "tool-whole-asked.txt").read_bytes(), cut=7))
    assert names(found)[-1] == "message_stop"
    assert final(found)["stop_reason"] == "tool_use"


# Errors


def engine_error(status: int, body: bytes) -> dict[str, Any]:
    outgoing = send("messages", {"messages": [{"role": "user", "content": "hi"}]})
    told: dict[str, Any] = json.loads(DIALECTS["messages"].engine_error(status, body, outgoing))
    assert told.keys() == {"type", "error"}
    assert told["type"] == "error"
    error: dict[str, Any] = told["error"]
    return error


def golden(name: str) -> str:
    message: str = json.loads((GOLDEN / name).read_bytes())["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (golden("overflow2.txt"), "prompt is too long: 4097 tokens > 4096 maximum. "),
        (golden("overflow.txt"), ""),
        (
            "This model's maximum context length is 10 tokens. However, your request has 12 input tokens.",
            "prompt is too long: 12 tokens > 10 maximum. ",
        ),
        (
            "The input (500 tokens) is longer than the model's context length (400 tokens).",
            "prompt is too long: 500 tokens > 400 maximum. ",
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 4000. This model's maximum context length is 4096 "
            "tokens and your request has 200 input tokens (4000 > 4096 - 200).",
            "input length and `max_tokens` exceed context limit: 200 + 4000 > 4096. ",
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 4129 tokens (4001 in the "
            "messages, 128 in the completion). Please reduce the length of the messages or completion.",
            "input length and `max_tokens` exceed context limit: 4001 + 128 > 4096. ",
        ),
        ("the prompt does not fit into the context window", "prompt is too long. "),
    ],
)
def test_context_overflow_keeps_its_words_behind_those_that_harnesses_know(message: str, words: str) -> None:
    """Field case 113: what makes Claude Code compact is the wording, and it reads the numbers."""
    error = engine_error(400, json.dumps({"error": {"message": message, "type": "BadRequestError"}}).encode())
    assert error == {"type": "invalid_request_error", "message": words + message}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_the_type_of_their_status(status: int, kind: str) -> None:
    assert engine_error(status, b'{"error":{"message":"words","code":1}}') == {"type": kind, "message": "words"}
    own = json.loads(DIALECTS["messages"].error(status, code="any", message="words"))
    assert own == {"type": "error", "error": {"type": kind, "message": "words"}}


@pytest.mark.parametrize(
    "body", [b"Bad Gateway", b"", b"[1]", b'{"error":"words"}', b'{"detail":"Not Found"}', b"\xff"]
)
def test_errors_in_any_shape_become_this_ones(body: bytes) -> None:
    assert engine_error(502, body).keys() == {"type", "message"}


@pytest.mark.parametrize(("code", "kind"), [("generation_aborted", "overloaded_error"), ("server_error", "api_error")])
def test_a_failure_outside_any_answer_is_an_error_event(code: str, kind: str) -> None:
    (event,) = events(DIALECTS["messages"].stream_error(code=code, message="gone"))
    assert event.name == b"error"
    assert json.loads(event.data or b"") == {"type": "error", "error": {"type": kind, "message": "gone"}}


def test_a_keepalive_is_an_event_that_clients_take_for_life() -> None:
    (event,) = events(DIALECTS["messages"].keepalive)
    assert (event.name, event.data) == (b"ping", b'{"type":"ping"}')
