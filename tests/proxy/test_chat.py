from __future__ import annotations

import json
import random
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forge.proxy.dialects import DIALECTS
from forge.proxy.dialects.base import BadRequest, Hold, Overrides
from tests.proxy.test_splice import nasty
from tests.proxy.wire import USER, answer, chunk, documents, events, run, send, stream, text, usage_chunk

TRAINING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
ENTRY = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
LOG_PROBS = {"content": [ENTRY]}


def body_of(outgoing: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(outgoing.body)
    return decoded


# Requests


def test_bytes_go_as_they_are_and_ours_stand_at_the_end() -> None:
    body = b'{ "model" : "m",\n "messages":[{"role":"user","content":"\\u00e9 \\"logprobs\\":"}], "stream":true }\n'
    outgoing = send("chat", body)
    assert outgoing.body.startswith(body.rstrip().removesuffix(b"}"))
    assert json.loads(outgoing.body) == json.loads(body) | {
        "return_token_ids": True,
        "logprobs": True,
        "stream_options": {"include_usage": True},
    }
    assert outgoing.stream
    assert outgoing.edits is None


def test_whole_answers_need_no_usage_asked() -> None:
    assert body_of(send("chat", {"messages": [USER]})) == {
        "messages": [USER],
        "return_token_ids": True,
        "logprobs": True,
    }


def test_what_the_harness_asks_itself_is_not_asked_again_and_stays_in_the_answer() -> None:
    request = {
        "messages": [USER],
        "stream": True,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": False},
    }
    outgoing = send("chat", request)
    assert not outgoing.edited
    assert outgoing.body == json.dumps(request).encode()
    body = stream(chunk({}, token_ids=[1], logprobs=LOG_PROBS), chunk({"content": "a"}, "stop"), usage_chunk())
    assert text(run(answer("chat", outgoing), body)) == body


@pytest.mark.parametrize("value", [False, None])
def test_a_member_that_asks_for_nothing_is_replaced(value: bool | None) -> None:
    options = {"include_usage": value, "continuous_usage_stats": True}
    request = {"stream": True, "logprobs": value, "return_token_ids": value, "stream_options": options}
    sent = send("chat", request | {"messages": [USER]})
    assert body_of(sent)["logprobs"] is True
    assert body_of(sent)["return_token_ids"] is True
    assert body_of(sent)["stream_options"] == {"include_usage": True}
    assert sent.body.count(b'"logprobs"') == 1
    assert sent.ask.drop_usage_chunk


def test_a_runs_sampling_replaces_the_harnesss_and_both_are_recorded() -> None:
    request = {"model": "m", "messages": [USER], "temperature": 0.2, "seed": 7, "logit_bias": {"5": 1}, "stop": ["x"]}
    outgoing = send("chat", request, overrides=Overrides(sampling=TRAINING))
    sent = body_of(outgoing)
    assert {name: sent[name] for name in TRAINING} == TRAINING
    assert "seed" not in sent
    assert "logit_bias" not in sent
    assert sent["stop"] == ["x"]
    assert outgoing.sampling_asked is not None
    assert json.loads(outgoing.sampling_asked) == {
        name: request[name] for name in ("temperature", "seed", "logit_bias", "stop")
    }
    assert outgoing.sampling_sent is not None
    assert json.loads(outgoing.sampling_sent) == TRAINING | {"stop": ["x"]}
    assert json.loads(outgoing.edits or "") == [
        {"edit": "sampling", "asked": {"temperature": 0.2, "seed": 7, "logit_bias": {"5": 1}}, "sent": TRAINING}
    ]


def test_sampling_that_is_already_so_is_no_edit() -> None:
    outgoing = send("chat", {"messages": [USER], **TRAINING, "temperature": 1}, overrides=Overrides(sampling=TRAINING))
    assert outgoing.edits is None


@pytest.mark.parametrize(
    ("asked", "overrides", "sent"),
    [
        ({"max_tokens": 500}, {"sampling": {"max_tokens": 64}}, {"max_tokens": 64}),
        ({"max_tokens": 16}, {"sampling": {"max_tokens": 64}}, {"max_tokens": 16}),
        ({"max_completion_tokens": 500}, {"sampling": {"max_tokens": 64}}, {"max_completion_tokens": 64}),
        ({"max_tokens": 9, "max_completion_tokens": 500}, {"max_tokens_cap": 100}, {"max_completion_tokens": 100}),
        ({"max_completion_tokens": None, "max_tokens": 500}, {"max_tokens_cap": 100}, {"max_tokens": 100}),
        ({}, {"sampling": {"max_tokens": 64}}, {"max_tokens": 64}),
        ({}, {"context_len": 8192}, {}),
        ({"max_tokens": 65536}, {"context_len": 8192}, {}),
        ({"max_tokens": 8191}, {"context_len": 8192}, {"max_tokens": 8191}),
        ({"max_tokens": 65536}, {"context_len": 8192, "max_tokens_cap": 300}, {"max_tokens": 300}),
    ],
)
def test_the_limit(asked: dict[str, Any], overrides: dict[str, Any], sent: dict[str, Any]) -> None:
    outgoing = send("chat", asked | {"messages": [USER]}, overrides=Overrides(**overrides))
    limits = {name: value for name, value in body_of(outgoing).items() if name.startswith("max_") and value is not None}
    assert limits == sent
    changed = limits != {name: value for name, value in asked.items() if value is not None}
    assert (outgoing.edits is not None and '"max_tokens"' in outgoing.edits) == changed


def test_the_models_name_is_mapped_and_put_back() -> None:
    outgoing = send("chat", {"model": "gpt-é", "messages": [USER], "stream": True}, overrides=Overrides(model="policy"))
    assert body_of(outgoing)["model"] == "policy"
    assert outgoing.model_requested == "gpt-é"
    assert json.loads(outgoing.edits or "") == [{"edit": "model", "asked": "gpt-é", "sent": "policy"}]
    got = documents(text(run(answer("chat", outgoing), stream(chunk({"content": "policy"}, "stop"), usage_chunk()))))
    assert [document["model"] for document in got] == ["gpt-é"]


def test_duplicated_members_are_edited_once() -> None:
    body = b'{"messages":[],"temperature":0.1,"temperature":0.2,"max_tokens":5,"max_tokens":900}'
    outgoing = send("chat", body, overrides=Overrides(sampling={"temperature": 1.0}, max_tokens_cap=10))
    assert outgoing.body.count(b"temperature") == 1
    assert body_of(outgoing)["max_tokens"] == 10
    assert json.loads(outgoing.sampling_asked or "") == {"temperature": 0.2, "max_tokens": 900}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":1}x', b"\xff", b"[" * 100_000])
def test_malformed_requests_are_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not a JSON object"):
        send("chat", body)


def test_a_limit_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadRequest, match="whole number") as refused:
        send("chat", {"messages": [], "max_tokens": "many"}, overrides=Overrides(max_tokens_cap=5))
    assert refused.value.param == "max_tokens"


def test_an_engine_of_text_only_is_asked_for_nothing_it_may_not_know() -> None:
    assert body_of(send("chat", {"messages": [USER]}, engine="openai")) == {"messages": [USER]}
    sent = body_of(send("chat", {"messages": [USER], "stream": True}, engine="openai"))
    assert sent.keys() == {"messages", "stream", "stream_options"}


def test_hints_are_small_and_name_what_attribution_looks_at() -> None:
    messages = [
        {"role": "system", "content": "s" * 9000},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    ]
    request = {
        "messages": messages,
        "tools": [{}, {}],
        "user": "u",
        "metadata": {"a": "b"},
        "prompt_cache_key": "k" * 9000,
    }
    hints = send("chat", request).hints
    assert hints["tools"] == 2
    assert hints["messages"] == 2
    assert hints["first_user"] == hints["last_user"] == "hi"
    assert len(hints["first_system"]) <= 4001
    assert (hints["user"], hints["metadata"]) == ("u", {"a": "b"})
    assert "prompt_cache_key" not in hints


# Streams


def asked_stream() -> bytes:
    return stream(
        chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2, 3], "prompt_text": None},
        chunk({"content": "Hel"}, logprobs=LOG_PROBS, token_ids=[5]),
        chunk({}, logprobs=LOG_PROBS, token_ids=[6]),
        chunk({"content": "lo"}, logprobs=LOG_PROBS, token_ids=[7]),
        chunk({}, "stop", stop_reason=None, token_ids=[2], logprobs=LOG_PROBS),
        usage_chunk(system_fingerprint="fp"),
    )


def plain_stream() -> bytes:
    return stream(
        chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": None, "prompt_text": None},
        chunk({"content": "Hel"}, token_ids=None),
        chunk({"content": "lo"}, token_ids=None),
        chunk({}, "stop", stop_reason=None, token_ids=None) | {"system_fingerprint": "fp"},
    )


@pytest.mark.parametrize("cut", [1, 2, 3, 17, 1 << 20])
def test_a_stream_is_what_it_would_have_been(cut: int) -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    assert text(run(got, asked_stream(), cut=cut)) == plain_stream()
    assert got.complete
    assert got.finish_reason == "stop"
    assert got.error is None


def test_the_embedded_servers_chunks_lose_the_members_it_does_not_write_unasked() -> None:
    spans = [{"version": "1", "start": 0, "end": 1}]
    asked = stream(
        chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2]},
        chunk({"content": ""}, logprobs=LOG_PROBS, token_ids=[5]),
        chunk({"content": "a"}, "stop", stop_reason=None, weight_versions=spans, token_ids=[6], logprobs=LOG_PROBS),
        usage_chunk(system_fingerprint="fp"),
    )
    plain = stream(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": ""}),
        chunk({"content": "a"}, "stop", stop_reason=None),
    )
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}, engine="embedded"))
    assert text(run(got, asked)) == plain


def test_hostile_text_in_streams() -> None:
    rng = random.Random(7)
    for _ in range(300):
        said = [nasty(rng) for _ in range(rng.randrange(1, 4))]
        asked = [chunk({"content": part}, token_ids=[1, 2], logprobs=LOG_PROBS) for part in said]
        plain = [chunk({"content": part}, token_ids=None) for part in said]
        end = chunk({}, "stop", token_ids=None)
        got = run(
            answer("chat", send("chat", {"messages": [USER], "stream": True})), stream(*asked, end, usage_chunk())
        )
        assert text(got) == stream(*plain, end)


def test_the_first_token_leaves_before_the_last_one_comes_and_the_end_is_held() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    body = [event.raw for event in events(asked_stream())]
    holds = [[piece.hold for piece in got.feed(raw)] for raw in body]
    assert holds == [[Hold.NOTHING], [Hold.NOTHING], [], [Hold.NOTHING], [], [Hold.CLOSE], []]
    assert [piece.hold for piece in got.finish()] == [Hold.CLOSE]


def test_other_choices_go_on_after_one_has_finished() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True, "n": 2}))
    second = chunk({"content": "b"})
    second["choices"][0]["index"] = 1
    last = chunk({}, "length")
    last["choices"][0]["index"] = 1
    pieces = run(got, stream(chunk({"content": "a"}), chunk({}, "stop"), second, last, usage_chunk()))
    assert text(pieces) == stream(chunk({"content": "a"}), chunk({}, "stop"), second, last)
    assert [piece.hold for piece in pieces] == [Hold.NOTHING, Hold.CLOSE, Hold.CLOSE]
    assert got.complete


@pytest.mark.parametrize("count", [b"0", b"1", b"null", b'"x"', b"-1", b"1.5", b"9" * 5000])
def test_a_count_that_says_nothing_is_one(count: bytes) -> None:
    outgoing = send("chat", b'{"messages":[],"stream":true,"n":' + count + b"}")
    got = answer("chat", outgoing)
    run(got, stream(chunk({"content": "a"}, "stop")))
    assert got.complete


def test_one_of_two_choices_is_not_the_end() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True, "n": 2}))
    pieces = run(got, stream(chunk({"content": "a"}, "stop"), done=False))
    assert not got.complete
    assert "broke off" in documents(text(pieces))[-1]["error"]["message"]


def test_comments_of_the_engine_pass() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    body = b": ping\n\n" + stream(chunk({"content": "a"})) + b": ping\n\n"
    assert b"".join(piece.data for piece in got.feed(body)).count(b": ping\n\n") == 2


@pytest.mark.parametrize("upto", range(0, len(asked_stream()) - 40, 41))
def test_a_stream_that_breaks_off_anywhere_ends_with_an_error(upto: int) -> None:
    body = asked_stream()[:upto]
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    pieces = run(got, body)
    given = documents(text(pieces))
    finished = b'"finish_reason":"stop"' in b"".join(event.raw for event in events(text(pieces)))
    assert got.complete == finished
    assert ("error" in given[-1]) == (not finished)
    assert text(pieces).endswith(b"\n\n")
    assert b'token_ids":[' not in text(pieces)


def test_an_engines_error_inside_its_200() -> None:
    error = {"error": {"message": "CUDA error", "type": "InternalServerError", "param": None, "code": 500}}
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    body = stream(chunk({"content": "a"}), error)
    pieces = run(got, body)
    assert text(pieces) == body
    assert pieces[-1].hold is Hold.CLOSE
    assert (got.complete, got.error) == (False, "CUDA error")


def test_done_without_a_finish_is_no_end() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    given = text(run(got, stream(chunk({"content": "a"}))))
    assert not got.complete
    assert b'"error"' in given
    assert given.endswith(b"data: [DONE]\n\n")


def test_a_finish_without_done_is_an_end() -> None:
    """Field case 98."""
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    body = stream(chunk({"content": "a"}, "stop"), done=False)
    assert text(run(got, body)) == body
    assert got.complete


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n"])
def test_a_last_event_without_its_empty_line(end: bytes) -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    body = stream(chunk({"content": "a"}, "stop"), done=False)
    assert text(run(got, body + end)) == body + b"data: [DONE]\n\n"
    assert got.complete


def test_an_event_beyond_the_cap_is_a_clean_error() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    for _ in range(65):
        pieces = got.feed(b"x" * (1 << 20))
    assert b"larger than 64 MiB" in text(pieces)
    assert got.feed(b"more\n\n") == []
    assert got.finish() == []
    assert not got.complete


def test_a_whole_body_where_a_stream_was_due_becomes_one() -> None:
    got = answer("chat", send("chat", {"messages": [USER], "stream": True}))
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {
        "id": "1",
        "model": "m",
        "created": 1,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    }
    whole["choices"][0]["token_ids"] = [1, 2]  # type: ignore[index]
    given = text(run(got, json.dumps(whole | {"usage": {"completion_tokens": 2}}).encode(), cut=9))
    (document,) = documents(given)
    assert ChatCompletionChunk.model_validate(document)
    assert document["choices"][0]["delta"]["tool_calls"] == [{"index": 0} | call]
    assert document["choices"][0]["token_ids"] is None
    assert given.endswith(b"data: [DONE]\n\n")
    assert got.complete


# Whole bodies


def whole(**members: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": 'say "token_ids":[1]', "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop", "token_ids": None}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice | members]}
    return head | {"usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}, "prompt_token_ids": None}


def compact(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_whole_body_has_its_nulls_back(cut: int) -> None:
    got = answer("chat", send("chat", {"messages": [USER]}))
    asked = whole(token_ids=[1, 2], logprobs=LOG_PROBS) | {"prompt_token_ids": list(range(5000))}
    (piece,) = run(got, compact(asked), cut=cut)
    assert piece.data == compact(whole())
    assert piece.hold is Hold.CLOSE
    assert got.complete
    assert got.finish_reason == "stop"
    ChatCompletion.model_validate_json(piece.data)


@pytest.mark.parametrize("body", [b"", b"<html>", compact(whole())[:-1], b"[]"])
def test_a_whole_body_that_cannot_be_read_gives_an_error_body(body: bytes) -> None:
    got = answer("chat", send("chat", {"messages": [USER]}))
    (piece,) = run(got, body)
    assert "cannot be read" in json.loads(piece.data)["error"]["message"]
    assert not got.complete
    assert got.error is not None


def test_a_whole_body_without_a_finish_is_not_complete() -> None:
    got = answer("chat", send("chat", {"messages": [USER]}))
    (piece,) = run(got, compact(whole(finish_reason=None)))
    assert piece.data == compact(whole(finish_reason=None))
    assert not got.complete


def test_errors() -> None:
    chat = DIALECTS["chat"]
    body = chat.error(503, code="recorder_unavailable", message="no disk", param="x")
    assert json.loads(body)["error"] == {
        "message": "no disk",
        "type": "recorder_unavailable",
        "param": "x",
        "code": "recorder_unavailable",
    }
    assert chat.engine_error(400, b"as it is", send("chat", {"messages": []})) == b"as it is"
    assert documents(chat.stream_error(code="c", message="m"))[0]["error"]["message"] == "m"
