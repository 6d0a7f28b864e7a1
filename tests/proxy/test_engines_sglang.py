"""SGLang's shapes, as its 0.5.23 writes them, and llama.cpp's: what is asked, what a client gets, what is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forge.proxy.dialects.base import Target
from forge.proxy.engines import ENGINES
from forge.proxy.recording.decode import decode_call
from forge.storage.records import Call, Untrainable
from tests.proxy.test_decode import closed, opened
from tests.proxy.wire import USER, answer, documents, run, send, text

HEAD = {"id": "a1", "object": "chat.completion.chunk", "created": 1700000000, "model": "policy"}
ENTRIES = [
    {"token": "Hello", "bytes": [72], "logprob": -0.5, "top_logprobs": []},
    {"token": " there", "bytes": [32], "logprob": -0.25, "top_logprobs": []},
    {"token": "<|im_end|>", "bytes": [], "logprob": -0.125, "top_logprobs": []},
]


def said(delta: dict[str, Any], finish: str | None = None, **members: Any) -> dict[str, Any]:
    rest = {"logprobs": None, "finish_reason": finish, "matched_stop": 2 if finish == "stop" else None}
    return HEAD | {"choices": [{"index": 0, "delta": {"reasoning_content": None} | delta} | rest | members]}


def sse(*chunks: dict[str, Any]) -> bytes:
    lines = [b"data: " + json.dumps(one, separators=(",", ":")).encode() + b"\n\n" for one in chunks]
    return b"".join([*lines, b"data: [DONE]\n\n"])


USAGE = HEAD | {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}}
IDS = HEAD | {"choices": [], "usage": None, "sglext": {"input_ids": [1, 2, 3], "output_ids": [[5, 6, 2]]}}
STREAM = (
    said({"role": "assistant", "content": ""}),
    said({"content": "Hello"}, logprobs={"content": ENTRIES[:1]}),
    said({"content": " there"}, logprobs={"content": ENTRIES[1:2]}),
    said({}, logprobs={"content": ENTRIES[2:]}),
    said({}, "stop"),
)


def whole(**choice: Any) -> bytes:
    message = {"role": "assistant", "content": "Hello there", "reasoning_content": None}
    full = {
        "index": 0,
        "message": message,
        "logprobs": {"content": ENTRIES},
        "finish_reason": "stop",
        "matched_stop": 2,
    }
    body = {
        "id": "a1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "policy",
        "choices": [full | choice],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
    return json.dumps(body | {"usage": usage, "metadata": {"weight_version": "7"}}).encode()


def row(body: bytes, engine: str) -> Call:
    sent = json.dumps({"messages": [USER], "temperature": 1.0}).encode()
    (made,) = decode_call(opened(engine=engine), sent, sent, body, closed())
    return made


def test_a_streams_ids_come_once_and_the_client_gets_what_it_would_have_got() -> None:
    """Field cases 138, 152: log probs in chunks, ids in one of their own."""
    outgoing = send("chat", {"messages": [USER], "stream": True}, engine="sglang")
    asked = json.loads(outgoing.body)
    assert (asked["return_input_ids_in_sglext"], asked["return_output_ids_in_sglext"]) == (True, True)
    assert (asked["logprobs"], asked["stream_options"]) == (True, {"include_usage": True})
    got = text(run(answer("chat", outgoing, engine="sglang"), sse(*STREAM, IDS, USAGE)))
    plain = [json.loads(json.dumps(one)) for one in (*STREAM[:3], STREAM[4])]
    for one in plain:
        one["choices"][0]["logprobs"] = None
    assert documents(got) == plain
    made = row(sse(*STREAM, IDS, USAGE), "sglang")
    assert (made.prompt_ids.tolist(), made.output_ids.tolist()) == ([1, 2, 3], [5, 6, 2])
    assert made.output_log_probs.tolist() == [-0.5, -0.25, -0.125]
    assert made.trainable


def test_whole_answers_hold_ids_and_weight_versions() -> None:
    outgoing = send("chat", {"messages": [USER]}, engine="sglang")
    spans = {
        "weight_version": "8",
        "weight_versions": [{"version": "7", "start": 0, "end": 1}, {"version": "8", "start": 1, "end": 3}],
    }
    body = json.dumps(json.loads(whole()) | {"sglext": IDS["sglext"], "metadata": spans}).encode()
    got = json.loads(text(run(answer("chat", outgoing, engine="sglang"), body)))
    assert "sglext" not in got
    assert got["choices"][0]["logprobs"] is None
    assert got["metadata"] == spans
    made = row(body, "sglang")
    assert (made.trainable, made.version_spans, made.version_source) == (True, "[[7,0,1],[8,1,3]]", "engine_spans")


def test_log_probs_that_a_parser_swallowed_are_missed() -> None:
    """Field case 138: they vanish with some parsers; the ids do not."""
    made = row(sse(*STREAM[:2], *STREAM[3:], IDS, USAGE), "sglang")
    assert made.untrainable_reason == Untrainable.LENGTH_MISMATCH


def test_an_older_server_is_asked_for_a_whole_body_and_the_client_gets_its_stream() -> None:
    """Field cases 140, 152: ``return_token_ids`` is refused in streams; ids, prompt ids and log probs whole."""
    request = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    outgoing = send("chat", request, engine="sglang_whole")
    asked = json.loads(outgoing.body)
    assert (asked["stream"], asked["stream_options"]) == (False, None)
    assert (asked["return_prompt_token_ids"], asked["return_meta_info"], asked["return_token_ids"]) == (True,) * 3
    meta = {"output_token_logprobs": [[-0.5, 5, "Hello"], [-0.25, 6, " there"], [-0.125, 2, None]], "id": "a1"}
    body = whole(prompt_token_ids=[1, 2, 3], response_token_ids=[5, 6, 2], meta_info=meta)
    got = documents(text(run(answer("chat", outgoing, engine="sglang_whole"), body)))
    assert got[0]["choices"][0]["delta"]["content"] == "Hello there"
    assert got[0]["choices"][0]["finish_reason"] == "stop"
    assert got[-1]["usage"]["completion_tokens"] == 3
    assert "token_ids" not in json.dumps(got).replace('"token_ids": null', "")
    made = row(body, "sglang_whole")
    assert (made.prompt_ids.tolist(), made.output_ids.tolist(), made.trainable) == ([1, 2, 3], [5, 6, 2], True)


def test_meta_information_alone_gives_ids_and_log_probs() -> None:
    """Field case 152."""
    meta = {"output_token_logprobs": [[-0.5, 5, "Hello there"], [None, 2, None]]}
    (token,) = ENGINES["sglang"].read_whole(whole(prompt_token_ids=[1], logprobs=None, meta_info=meta))
    assert (token.prompt_ids.tolist(), token.output_ids.tolist()) == ([1], [5, 2])
    assert str(token.output_log_probs.tolist()) == "[-0.5, nan]"


def test_raw_completions_hold_ids_in_their_chunks() -> None:
    outgoing = send("completions", {"prompt": "x", "stream": True, "max_tokens": 4}, engine="sglang")
    asked = json.loads(outgoing.body)
    assert (asked["return_token_ids"], asked["logprobs"]) == (True, 0)
    assert {cut.key for cut in outgoing.ask.cuts} == {b"token_ids", b"prompt_token_ids", b"logprobs"}


def test_several_choices_have_their_own_ids() -> None:
    other = json.loads(json.dumps(STREAM))
    for one in other:
        one["choices"][0]["index"] = 1
    ids = HEAD | {"choices": [], "sglext": {"input_ids": [1], "output_ids": [[5, 6, 2], [7, 8, 2]]}}
    tokens = ENGINES["sglang"].read_stream(sse(*STREAM, *other, ids))
    assert [token.output_ids.tolist() for token in tokens] == [[5, 6, 2], [7, 8, 2]]
    assert [token.prompt_ids.tolist() for token in tokens] == [[1], [1]]


def test_what_a_client_asks_beside_the_ids_stays_with_it() -> None:
    request = {"messages": [USER], "return_routed_experts": True, "logprobs": True}
    outgoing = send("chat", request, engine="sglang")
    body = json.dumps(json.loads(whole()) | {"sglext": IDS["sglext"] | {"routed_experts": "AAA="}}).encode()
    got = json.loads(text(run(answer("chat", outgoing, engine="sglang"), body)))
    assert got["sglext"]["routed_experts"] == "AAA="
    assert got["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize(("mode", "pauses"), [("wait", "retract"), ("abort", "abort"), ("keep", "retract")])
def test_new_weights_are_loaded_while_paused_and_the_cache_is_flushed(mode: str, pauses: str) -> None:
    """Field cases 173, 174, 175: whatever runs lets go of the cache before it is flushed, before anything resumes."""
    steps = ENGINES["sglang"].publication("/w/3", version=3, mode=mode)
    assert steps is not None
    assert [(step.path, step.json) for step in steps.pause] == [("/pause_generation", {"mode": pauses})]
    (load,) = steps.load
    assert (load.path, load.json) == (
        "/update_weights_from_disk",
        {"model_path": "/w/3", "flush_cache": True, "weight_version": "3"},
    )
    assert load.expect == {"success": True}
    assert [(step.path, step.ok) for step in steps.reset] == [("/flush_cache", (200,))]
    assert steps.set_version[0].json == {"new_version": "3", "abort_all_requests": False}
    assert [step.path for step in steps.resume] == ["/continue_generation"]


def test_llama_cpp_gives_sampled_ids_but_none_of_the_prompt() -> None:
    """It never trains; what it does give is kept."""
    content = [
        {"id": 5, "token": "Hello", "bytes": [72], "logprob": -0.5, "top_logprobs": []},
        {"id": 6, "token": " there", "bytes": [32], "logprob": -3.4028234663852886e38, "top_logprobs": []},
    ]
    outgoing = send("chat", {"messages": [USER]}, engine="llamacpp")
    assert json.loads(outgoing.body)["logprobs"] is True
    body = whole(logprobs={"content": content})
    assert "logprobs" not in json.loads(text(run(answer("chat", outgoing, engine="llamacpp"), body)))["choices"][0]
    made = row(body, "llamacpp")
    assert (made.output_ids.tolist(), made.untrainable_reason) == ([5, 6], Untrainable.PROMPT_IDS_MISSING)
    assert str(made.output_log_probs.tolist()) == "[-0.5, nan]"
    assert not ENGINES["llamacpp"].trainable
    assert ENGINES["llamacpp"].publication("/w", version=1, mode="wait") is None


@pytest.mark.parametrize("dialect", ["responses", "messages", "gemini"])
def test_calls_that_share_an_index_are_two(dialect: str) -> None:
    """Field case 141: older servers write the tool's place in the request for a call's index."""

    def part(index: int, id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
        return said({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})

    told = [
        part(3, "a", "run", ""),
        part(3, None, None, '{"n": 1}'),
        part(3, "b", "run", ""),
        part(3, None, None, "{}"),
    ]
    body = sse(STREAM[0], *told, said({}, "tool_calls"), IDS, USAGE)
    made = row(body, "sglang")
    functions = [call["function"] for call in json.loads(made.response or "")["tool_calls"]]
    assert functions == [{"name": "run", "arguments": '{"n": 1}'}, {"name": "run", "arguments": "{}"}]
    requests: dict[str, Any] = {
        "responses": {"input": "go", "stream": True},
        "messages": {"max_tokens": 9, "messages": [USER], "stream": True},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
    }
    outgoing = send(dialect, requests[dialect], engine="sglang", target=Target(model="policy", stream=True))
    got = text(run(answer(dialect, outgoing, engine="sglang"), body))
    assert b"went back" not in got
    assert got.count(b'"name":"run"') >= 2
