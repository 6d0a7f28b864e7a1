from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.proxy.engines import ENGINES
from forge.proxy.engines.unstreamed import as_stream
from tests.proxy.wire import chunk, stream, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"


def entry(log_prob: float | None, top: list[Any] | None = None) -> dict[str, Any]:
    return {"token": "t", "logprob": log_prob, "bytes": [116], "top_logprobs": top or []}


def whole(*choices: dict[str, Any], **members: Any) -> bytes:
    return json.dumps({"choices": list(choices), "model": "m"} | members).encode()


@pytest.mark.parametrize("kind", ["text", "tool"])
def test_real_answers_say_the_same_streamed_and_whole(kind: str) -> None:
    vllm = ENGINES["vllm"]
    (streamed,) = vllm.read_stream((GOLDEN / f"{kind}-stream-asked.txt").read_bytes())
    (complete,) = vllm.read_whole((GOLDEN / f"{kind}-whole-asked.txt").read_bytes())
    assert streamed.prompt_ids.tolist() == complete.prompt_ids.tolist() != []
    assert streamed.output_ids.tolist() == complete.output_ids.tolist() != []
    assert len(streamed.output_log_probs) == len(streamed.output_ids) == streamed.completion_tokens
    np.testing.assert_allclose(streamed.output_log_probs, complete.output_log_probs, atol=1e-5)
    assert streamed.output_ids.dtype == np.int32
    assert streamed.output_log_probs.dtype == np.float32
    assert streamed.finish_reason == complete.finish_reason
    for message in (streamed.message, complete.message):
        for call in message.get("tool_calls", ()):
            call["id"] = "x"
    assert streamed.message == complete.message


@pytest.mark.parametrize("name", ["n2", "n2-stream"])
def test_real_answers_of_two_choices(name: str) -> None:
    vllm = ENGINES["vllm"]
    read = vllm.read_stream if "stream" in name else vllm.read_whole
    tokens = read((GOLDEN / f"{name}.txt").read_bytes())
    assert len(tokens) == 2
    assert tokens[0].completion_tokens == sum(len(token.output_ids) for token in tokens)
    assert tokens[0].prompt_ids.tolist() == tokens[1].prompt_ids.tolist() != []


def test_several_tokens_per_chunk_and_tokens_without_text() -> None:
    body = stream(
        chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2, 3]},
        chunk({"content": "two"}, token_ids=[4, 5], logprobs={"content": [entry(-0.5), entry(-0.25)]}),
        chunk({}, token_ids=[6], logprobs={"content": [entry(-1.0)]}),
        chunk({"content": ""}, "stop", token_ids=[7], logprobs={"content": [entry(-2.0)]}),
        usage_chunk(3, 4),
    )
    (token,) = ENGINES["vllm"].read_stream(body)
    assert token.prompt_ids.tolist() == [1, 2, 3]
    assert token.output_ids.tolist() == [4, 5, 6, 7]
    assert token.output_log_probs.tolist() == [-0.5, -0.25, -1.0, -2.0]
    assert (token.prompt_tokens, token.completion_tokens) == (3, 4)
    assert token.message == {"role": "assistant", "content": "two"}


def test_a_missing_log_prob_is_never_a_number() -> None:
    content = [entry(None), entry(-9999.0), entry(0.0)]
    (token,) = ENGINES["vllm"].read_whole(whole({"token_ids": [1, 2, 3], "logprobs": {"content": content}}))
    assert np.isnan(token.output_log_probs).tolist() == [True, True, False]


def test_tool_calls_grow_by_index_and_reasoning_has_two_names() -> None:
    parts: list[dict[str, Any]] = [
        {"reasoning": "I "},
        {"reasoning_content": "think"},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": '{"x":'}},
                {"index": 1, "function": {"arguments": "}"}},
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
    ]
    (token,) = ENGINES["vllm"].read_stream(stream(*(chunk(part) for part in parts), chunk({}, "tool_calls")))
    assert token.message == {
        "role": "assistant",
        "content": None,
        "reasoning": "I think",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_weight_versions_of_the_embedded_server_and_their_names_elsewhere() -> None:
    spans = [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}]
    (token,) = ENGINES["embedded"].read_whole(whole({"token_ids": [1, 2, 3], "weight_versions": spans}))
    assert token.version_spans == [(3, 0, 2), (4, 2, 3)]
    named = [{"version": "default", "start": 0, "end": 3}]
    (token,) = ENGINES["embedded"].read_whole(whole({"token_ids": [1, 2, 3], "weight_versions": named}))
    assert token.version_spans is None


def test_alternatives_are_kept_where_there_are_any() -> None:
    content = [entry(-1.0, [{"token": "a", "logprob": -1.0, "bytes": [97]}]), entry(-2.0)]
    (token,) = ENGINES["vllm"].read_whole(whole({"logprobs": {"content": content}}))
    assert json.loads(token.top_logprobs or "") == [[{"token": "a", "logprob": -1.0, "bytes": [97]}], []]
    (token,) = ENGINES["vllm"].read_whole(whole({"logprobs": {"content": [entry(-2.0)]}}))
    assert token.top_logprobs is None


def test_usage_chunks_of_every_odd_kind() -> None:
    for odd in ({"choices": None, "usage": {"completion_tokens": 1}}, {"usage": {"completion_tokens": 1}}):
        (token,) = ENGINES["vllm"].read_stream(stream(chunk({"content": "a"}, "stop"), odd))
        assert (token.message["content"], token.completion_tokens) == ("a", 1)


def test_prompt_ids_may_stand_per_choice() -> None:
    (token,) = ENGINES["vllm"].read_whole(whole({"prompt_token_ids": [7, 8]}))
    assert token.prompt_ids.tolist() == [7, 8]


def test_a_stream_that_broke_off_gives_what_it_held() -> None:
    body = stream(chunk({"content": "a"}, token_ids=[1]), chunk({"content": "b"}, token_ids=[2]), done=False)
    (token,) = ENGINES["vllm"].read_stream(body[:-20])
    assert (token.message["content"], token.output_ids.tolist(), token.finish_reason) == ("a", [1], None)


def test_errors_have_their_words() -> None:
    error = {"error": {"message": "boom", "code": 500}}
    (token,) = ENGINES["vllm"].read_stream(stream(chunk({"content": "a"}), error))
    assert (token.error, token.message["content"]) == ("boom", "a")
    (token,) = ENGINES["vllm"].read_whole(json.dumps(error).encode())
    assert (token.error, token.message) == ("boom", {})


@pytest.mark.parametrize("body", [b"", b"{}", b"<html>", b"[]", b'{"choices":3}', b'{"choices":[{"token_ids":["a"]}]}'])
def test_what_is_no_answer_is_a_value_error(body: bytes) -> None:
    for engine in ENGINES.values():
        with pytest.raises(ValueError, match="not a chat completion"):
            engine.read_whole(body)
    with pytest.raises(ValueError, match="not a chat completion"):
        as_stream(b"<html>")


def test_ids_beyond_32_bits_are_a_value_error() -> None:
    with pytest.raises(ValueError, match="32-bit"):
        ENGINES["vllm"].read_whole(whole({"token_ids": [1 << 40]}))


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
def test_new_weights_are_loaded_while_paused_and_every_cache_is_dropped(mode: str) -> None:
    steps = ENGINES["vllm"].publication("/w/3", version=3, mode=mode)
    assert steps is not None
    assert [step.path for step in steps.pause] == [f"/pause?mode={mode}"]
    assert steps.load[0].json == {"method": "reload_weights", "kwargs": {"weights_path": "/w/3"}}
    assert steps.reset[0].path.startswith("/reset_prefix_cache")
    assert ("reset_running_requests" in steps.reset[0].path) == (mode == "keep")
    assert [step.ok for step in steps.reset[1:]] == [(200, 404), (200, 404)]
    assert steps.set_version[0].json == {"new_version": "3"}
    assert [step.path for step in steps.resume] == ["/resume"]
    embedded = ENGINES["embedded"].publication("/w/3", version=3, mode=mode)
    assert embedded is not None
    assert embedded.load[0].json == {"path": "/w/3"}
    assert embedded.digest is not None
    assert ENGINES["openai"].publication("/w/3", version=3, mode=mode) is None


def test_only_engines_that_give_ids_can_train() -> None:
    assert {name: engine.trainable for name, engine in ENGINES.items()} == {
        "vllm": True,
        "sglang": True,
        "sglang_whole": True,
        "embedded": True,
        "llamacpp": False,
        "openai": False,
    }
