from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.proxy.recording.decode import decode_call
from forge.proxy.recording.worth import constrained
from forge.storage.frames import Close, Open, seq
from forge.storage.records import Call, Untrainable, VersionSource
from tests.proxy.wire import CALL_ID, USER, chunk, stream, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"
DEEP = b"[" * 100_000
REQUEST = {"model": "policy", "messages": [USER], "temperature": 1.0}


def opened(**members: Any) -> Open:
    plain: dict[str, Any] = {
        "call_id": CALL_ID,
        "session_id": "s",
        "run_id": "r",
        "boot": 1,
        "mono_us": 5,
        "writer": 2,
        "wall_us": 77,
        "dialect": "chat",
        "path": "/v1/chat/completions",
        "stream": True,
        "request_len": 0,
        "engine": "vllm",
        "replica": "http://a",
        "policy_version": 4,
        "version_source": "replica_state",
        "weight_digest": "d4",
        "logprobs_mode": "processed",
    }
    return Open(**plain | members)


def closed(status: str = "ok", **members: Any) -> Close:
    return Close(call_id=CALL_ID, status=status, http_status=200, content_type="text/event-stream", **members)


def answer(
    ids: tuple[int, ...] = (5, 2), log_probs: tuple[float | None, ...] = (-0.5, -0.25), *, output: int | None = None
) -> bytes:
    entries = [
        {"token": "hello" if not place else "", "logprob": value, "bytes": [97], "top_logprobs": []}
        for place, value in enumerate(log_probs)
    ]
    said = chunk({"content": "hello"}, "stop", token_ids=list(ids), logprobs={"content": entries})
    first = chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2, 3]}
    return stream(first, said, usage_chunk(3, len(ids) if output is None else output))


def decode(
    body: bytes | None = None,
    request: dict[str, Any] | None = None,
    *,
    open: Open | None = None,
    close: Close | None = None,
) -> Call:
    sent = json.dumps(request or REQUEST).encode()
    (call,) = decode_call(open or opened(), sent, sent, answer() if body is None else body, close or closed())
    return call


def test_a_good_call_has_every_column_it_can_have() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    open = opened(
        sampling_sent='{"temperature":1.0}',
        harness="pi",
        kind="title",
        kind_rule="no tools",
        retry_of="c1",
        edits="[]",
        policy_lineage="l",
    )
    close = closed(delivered=9, delivered_sha256="x", first_byte_us=3, end_us=8)
    call = decode(request=REQUEST | {"tools": tools}, open=open, close=close)
    assert call.trainable
    assert call.untrainable_reason is None
    assert (call.call_id, call.choice, call.seq, call.start_us) == (CALL_ID, 0, seq(open), 77)
    assert json.loads(call.messages) == [USER]
    assert json.loads(call.tools or "") == tools
    assert json.loads(call.response or "") == {"role": "assistant", "content": "hello"}
    assert call.request_raw is None
    assert call.prompt_ids.tolist() == [1, 2, 3]
    assert call.output_ids.tolist() == [5, 2]
    assert call.output_log_probs.tolist() == [-0.5, -0.25]
    assert (call.prompt_tokens, call.completion_tokens) == (3, 2)
    assert (call.finish_reason, call.model_served) == ("stop", "policy")
    assert (call.policy_version_start, call.policy_version_end, call.weight_digest) == (4, 4, "d4")
    assert (call.version_source, call.policy_lineage) == (VersionSource.REPLICA_STATE, "l")
    assert json.loads(call.sampling_sent or "") == {"temperature": 1.0}
    assert (call.harness, call.kind, call.kind_rule, call.retry_of) == ("pi", "title", "no tools", "c1")
    assert (call.delivered, call.first_byte_us, call.end_us, call.http_status) == (9, 3, 8, 200)
    assert call.parent_call_id is None


def test_another_dialects_own_body_is_kept() -> None:
    raw, sent = b'{"input":"hi"}', json.dumps(REQUEST).encode()
    (call,) = decode_call(opened(dialect="responses"), raw, sent, answer(), closed())
    assert call.request_raw == raw
    assert json.loads(call.messages) == [USER]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (answer(), None),
        (answer((), (), output=2), Untrainable.OUTPUT_IDS_MISSING),
        (answer((), ()), Untrainable.NO_TOKENS),
        (answer(log_probs=()), Untrainable.LOG_PROBS_MISSING),
        (answer(log_probs=(-0.5,)), Untrainable.LENGTH_MISMATCH),
        (answer(output=3), Untrainable.LENGTH_MISMATCH),
        (answer(log_probs=(-0.5, None)), Untrainable.LOG_PROBS_INVALID),
        (answer(log_probs=(-0.5, -9999.0)), Untrainable.LOG_PROBS_INVALID),
        (answer(log_probs=(-0.5, 0.1)), Untrainable.LOG_PROBS_INVALID),
        (answer(log_probs=(-0.5, 1e-6)), None),
        (answer(log_probs=(0.0, 0.0)), None),
        (answer(tuple(range(16)), (0.0,) * 16), Untrainable.LOG_PROBS_INVALID),
        (answer().replace(b'"prompt_token_ids":[1,2,3]', b'"prompt_token_ids":null'), Untrainable.PROMPT_IDS_MISSING),
        (answer().replace(b'"finish_reason":"stop"', b'"finish_reason":null'), Untrainable.STATUS),
        (answer().replace(b'"finish_reason":"stop"', b'"finish_reason":"abort"'), Untrainable.STATUS),
        (b"", Untrainable.STATUS),
        (b"<html>", Untrainable.STATUS),
    ],
)
def test_worth(body: bytes, reason: Untrainable | None) -> None:
    call = decode(body)
    assert (call.trainable, call.untrainable_reason) == (reason is None, reason)


def test_a_missing_usage_cannot_vouch_for_the_lengths() -> None:
    body = b"".join(part + b"\n\n" for part in answer().split(b"\n\n") if part and b'"usage"' not in part)
    assert decode(body).untrainable_reason == Untrainable.LENGTH_MISMATCH


@pytest.mark.parametrize(
    ("members", "shaped"),
    [
        ({}, False),
        ({"temperature": 0.7}, False),
        ({"top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0.0}, False),
        ({"top_k": 0, "logit_bias": {}, "bad_words": [], "structured_outputs": None, "use_beam_search": False}, False),
        (
            {"response_format": {"type": "text"}, "tool_choice": "auto", "seed": 3, "stop": ["x"], "ignore_eos": True},
            False,
        ),
        ({"top_p": None, "top_k": None, "tool_choice": None}, False),
        ({"temperature": 0}, True),
        ({"top_p": 0.9}, True),
        ({"top_k": 20}, True),
        ({"min_p": 0.05}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 1.1}, True),
        ({"logit_bias": {"5": 1}}, True),
        ({"bad_words": ["x"]}, True),
        ({"allowed_token_ids": [1]}, True),
        ({"min_tokens": 5}, True),
        ({"structured_outputs": {"regex": "a"}}, True),
        ({"guided_regex": "a"}, True),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
    ],
)
def test_what_shapes_the_distribution(members: dict[str, Any], shaped: bool) -> None:
    assert constrained({name: json.dumps(value).encode() for name, value in members.items()}) == shaped
    reason = Untrainable.CONSTRAINED if shaped else None
    assert decode(request=REQUEST | members).untrainable_reason == reason


def test_raw_log_probs_are_right_only_at_temperature_one() -> None:
    raw = opened(logprobs_mode="raw")
    assert decode(open=raw).trainable
    assert decode(request=REQUEST | {"temperature": 0.5}, open=raw).untrainable_reason == Untrainable.LOG_PROBS_INVALID


def test_versions_strongest_source_first() -> None:
    spans = b',"weight_versions":[{"version":"3","start":0,"end":1},{"version":"4","start":1,"end":2}]'
    with_spans = answer().replace(b',"token_ids":[5,2]', b',"token_ids":[5,2]' + spans)
    call = decode(with_spans, open=opened(engine="embedded"))
    assert (call.policy_version_start, call.policy_version_end) == (3, 4)
    assert json.loads(call.version_spans or "") == [[3, 0, 1], [4, 1, 2]]
    assert call.version_source == VersionSource.ENGINE_SPANS
    gap = with_spans.replace(b'"start":1', b'"start":0')
    assert decode(gap, open=opened(engine="embedded")).version_source == VersionSource.REPLICA_STATE
    straddled = decode(close=closed(policy_version=5))
    assert (straddled.policy_version_start, straddled.policy_version_end) == (4, 5)
    unknown = decode(open=opened(policy_version=None, version_source="unknown"))
    assert unknown.untrainable_reason == Untrainable.VERSION_UNKNOWN


@pytest.mark.parametrize("status", ["error", "truncated", "aborted", "interrupted", "late"])
def test_a_call_that_was_cut_short_is_a_row_of_what_came(status: str) -> None:
    body = answer()
    call = decode(body[: body.index(b"data: [DONE]") - 250], close=closed(status, error="gone"))
    assert (call.status, call.error, call.trainable) == (status, "gone", False)
    assert call.untrainable_reason == Untrainable.STATUS
    assert call.prompt_ids.tolist() == [1, 2, 3]


def test_an_engines_own_error_is_the_rows_error() -> None:
    body = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'
    call = decode(body, close=closed("error", engine_status=400))
    assert (call.error, call.response, call.output_ids.tolist()) == ("too long", None, [])


def test_one_row_per_choice_and_lengths_checked_over_all() -> None:
    body = (GOLDEN / "n2-stream.txt").read_bytes()
    sent = json.dumps(REQUEST | {"n": 2}).encode()
    rows = decode_call(opened(), sent, sent, body, closed())
    assert [row.choice for row in rows] == [0, 1]
    assert all(row.trainable for row in rows)
    assert [row.completion_tokens for row in rows] == [len(row.output_ids) for row in rows]
    short = decode_call(
        opened(), sent, sent, body.replace(b'"completion_tokens":16', b'"completion_tokens":17'), closed()
    )
    assert [row.untrainable_reason for row in short] == [Untrainable.LENGTH_MISMATCH] * 2


def test_a_whole_body_is_told_by_its_bytes_or_its_type() -> None:
    body = (GOLDEN / "text-whole-asked.txt").read_bytes()
    assert decode(body).trainable
    assert decode(body, close=Close(call_id=CALL_ID, status="ok", content_type="application/json")).trainable


def test_text_only_engines_give_text() -> None:
    call = decode((GOLDEN / "text-whole-plain.txt").read_bytes(), open=opened(engine="openai"))
    assert call.untrainable_reason == Untrainable.PROMPT_IDS_MISSING
    assert "Paris" in (call.response or "")


@given(st.binary(max_size=200), st.binary(max_size=200), st.sampled_from(["vllm", "embedded", "openai", "unheard"]))
def test_it_never_raises(request: bytes, body: bytes, engine: str) -> None:
    for content_type in ("", "application/json", "text/event-stream"):
        close = Close(call_id=CALL_ID, status="ok", content_type=content_type)
        (call,) = decode_call(opened(engine=engine), request, request, body, close)
        assert not call.trainable


@given(st.integers(0, 3000), st.integers(0, 255), st.data())
def test_it_never_raises_on_damaged_answers(at: int, byte: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["tool-stream-asked", "tool-whole-asked", "n2-stream", "overflow"]))
    body = bytearray((GOLDEN / f"{name}.txt").read_bytes())
    body[at % len(body)] = byte
    sent = json.dumps(REQUEST).encode()
    for call in decode_call(opened(), sent, sent, bytes(body), closed()):
        if call.trainable:
            assert len(call.output_ids) == len(call.output_log_probs)
            assert all(math.isfinite(value) for value in call.output_log_probs)


@pytest.mark.parametrize(
    "body", [b'{"choices":' + b"[" * 100_000, b"data: " + b"[" * 100_000 + b"\n\n", b"\xff\xfe{}", b'{"stop":"\xff"}']
)
def test_deep_and_foreign_bytes(body: bytes) -> None:
    assert not decode(body).trainable
    assert not decode_call(opened(), body, body, answer(), closed())[0].messages.startswith("{")
