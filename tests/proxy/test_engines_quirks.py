"""Every oddity of an engine's answer that a field report names: what is read of it, and that none trains wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.proxy.engines import ENGINES
from forge.proxy.recording.decode import decode_call
from forge.storage.frames import Close, Open
from forge.storage.records import Call, Untrainable
from tests.proxy.test_decode import closed, opened
from tests.proxy.wire import USER, chunk, stream, usage_chunk

GOLDEN = Path(__file__).parent / "golden" / "vllm-0.32.0"
PROMPT = {"prompt_token_ids": [1, 2, 3]}


def entries(*said: tuple[str, float | None]) -> dict[str, Any]:
    return {"content": [{"token": text, "logprob": p, "bytes": [], "top_logprobs": []} for text, p in said]}


def row(
    body: bytes, *, engine: str = "vllm", open: Open | None = None, close: Close | None = None, **asked: Any
) -> Call:
    sent = json.dumps({"messages": [USER], "temperature": 1.0} | asked).encode()
    (made,) = decode_call(open or opened(engine=engine), sent, sent, body, close or closed())
    return made


def test_ids_that_a_parser_dropped_are_missed() -> None:
    """Field cases 125, 126, 127: the sum of the ids is not what the engine counts."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    kept = chunk({"content": "a"}, "tool_calls", token_ids=[5], logprobs=entries(("a", -0.5)))
    made = row(stream(head, kept, usage_chunk(3, 4)))
    assert (made.trainable, made.untrainable_reason) == (False, Untrainable.LENGTH_MISMATCH)
    assert made.output_ids.tolist() == [5]


def test_a_proxy_that_took_the_ids_away_is_no_source() -> None:
    """Field cases 128, 129: an answer without ids is a row of text."""
    made = row(stream(chunk({"role": "assistant", "content": "a"}, "stop"), usage_chunk(3, 1)))
    assert made.untrainable_reason == Untrainable.PROMPT_IDS_MISSING


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("Hello there", None),
        ("Hello", None),  # a stop string cut it
        ("there", Untrainable.TEXT_MISMATCH),  # the first token's text was lost
        ("Hello again", Untrainable.TEXT_MISMATCH),
        (" Hello\nthere ", None),  # white space is the parsers' own affair
    ],
)
def test_the_text_must_be_what_the_tokens_say(content: str, reason: Untrainable | None) -> None:
    """Field cases 131, 132: content that lost its first token; text that tokens do not say."""
    said = entries(("Hello", -0.5), (" there", -0.25), ("<|im_end|>", -0.1))
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    body = stream(head, chunk({"content": content}, "stop", token_ids=[5, 6, 2], logprobs=said), usage_chunk(3, 3))
    assert row(body).untrainable_reason == reason


def test_thoughts_and_content_stand_in_the_tokens_in_order() -> None:
    """Field case 132: coarse chunks; markup between the parts belongs to neither."""
    said = entries(("<think>", -0.1), ("I see", -0.5), ("</think>\n\n", -0.1), ("Yes", -0.25), ("<|im_end|>", -0.1))
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    ids = [4, 5, 6, 7, 2]
    for delta, reason in (
        ({"reasoning": "I see", "content": "Yes"}, None),
        ({"content": "Yes"}, Untrainable.TEXT_MISMATCH),
        ({"reasoning": "Yes", "content": "I see"}, Untrainable.TEXT_MISMATCH),
    ):
        body = stream(head, chunk(delta, "stop", token_ids=ids, logprobs=said), usage_chunk(3, 5))
        assert row(body).untrainable_reason == reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("dsystem\n", None),  # special tokens have no text in a message
        ("d<|im_start|>system\n", None),  # where the harness asked for them they do
        ("dsystem\n<b>", None),  # and a token of the same form that is none of them has it always
        ("d", None),  # a stop string cut it
        ("system\n", Untrainable.TEXT_MISMATCH),
        ("dsystem\n<i>", Untrainable.TEXT_MISMATCH),
    ],
)
def test_special_tokens_may_stand_anywhere(content: str, reason: Untrainable | None) -> None:
    """Field case 132, the other way round: what was sampled amid the text is no reason to lose the row."""
    said = entries(("d", -2.0), ("<|im_start|>", -3.0), ("system", -0.5), ("\n", -0.1), ("<b>", -1.0), ("</s>", -0.1))
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    ids = [4, 1, 6, 7, 8, 2]
    body = stream(head, chunk({"content": content}, "stop", token_ids=ids, logprobs=said), usage_chunk(3, 6))
    assert row(body).untrainable_reason == reason


@pytest.mark.parametrize("text", ["\ufffd", "<0xE2>", "token_id:5", None])
def test_tokens_whose_text_is_not_known_claim_nothing(text: str | None) -> None:
    said = {"content": [{"token": text, "logprob": -0.5}]}
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    body = stream(head, chunk({"content": "\u20ac"}, "stop", token_ids=[5], logprobs=said), usage_chunk(3, 1))
    assert row(body).trainable


def test_coarse_deltas_of_calls_are_kept_as_they_came() -> None:
    """Field cases 133, 134, 145: several tokens per chunk; empty or broken arguments stay raw, the ids whole."""
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '"x":1}'}}
    said = entries(*[("t", -0.5)] * 6)
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    body = stream(
        head,
        chunk({"tool_calls": [call]}, "tool_calls", token_ids=[4, 5, 6, 7, 8, 2], logprobs=said),
        usage_chunk(3, 6),
    )
    made = row(body)
    assert json.loads(made.response or "")["tool_calls"][0]["function"]["arguments"] == '"x":1}'
    assert (made.trainable, len(made.output_ids)) == (True, 6)


def test_prompt_log_probs_begin_with_a_null() -> None:
    """Field case 135."""
    prompt_log_probs = [None, {"7": {"logprob": -7.75, "rank": 133, "decoded_token": "system"}}]
    choice = {"message": {"content": "a"}, "token_ids": [5], "logprobs": entries(("a", -0.5)), "finish_reason": "stop"}
    body = json.dumps(
        {"choices": [choice], "prompt_logprobs": prompt_log_probs, "usage": {"completion_tokens": 1}} | PROMPT
    )
    assert row(body.encode()).trainable


@pytest.mark.parametrize("written", [b"null", b"-Infinity", b"NaN", b"-9999.0", b"-3.4028234663852886e+38"])
def test_no_log_prob_however_it_is_written_is_null(written: bytes) -> None:
    """Field cases 136, 137: ``-inf`` as Python, orjson, vLLM and llama.cpp write it; never 0.0, never in the loss."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    said = chunk({"content": "ab"}, "stop", token_ids=[5, 2], logprobs=entries(("ab", -0.5), ("", -0.125)))
    made = row(stream(head, said, usage_chunk(3, 2)).replace(b"-0.125", written))
    assert np.isnan(made.output_log_probs).tolist() == [False, True]
    assert (made.response or "").count("ab") == 1
    assert made.untrainable_reason == Untrainable.LOG_PROBS_INVALID


def test_words_like_numbers_stay_words() -> None:
    """Field case 136: only a document that is no JSON is mended, and only where a number stands."""
    body = stream(chunk({"content": "x: -Infinity, NaN"}, "stop", token_ids=[5], logprobs=entries(("x", -0.5))))
    (token,) = ENGINES["vllm"].read_stream(body)
    assert token.message["content"] == "x: -Infinity, NaN"


@pytest.mark.parametrize(("count", "reason"), [(15, None), (16, Untrainable.LOG_PROBS_INVALID)])
def test_log_probs_that_are_all_zero_were_never_made(count: int, reason: Untrainable | None) -> None:
    """Field case 142: speculative decoding."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    said = entries(*[("", 0.0)] * count)
    body = stream(head, chunk({}, "stop", token_ids=list(range(count)), logprobs=said), usage_chunk(3, count))
    assert row(body).untrainable_reason == reason


def test_short_log_probs_are_not_padded() -> None:
    """Field cases 147, 149: one check over ids, log probs and the engine's count."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    body = stream(head, chunk({}, "stop", token_ids=[5, 6, 2], logprobs=entries(("", -0.5))), usage_chunk(3, 3))
    made = row(body)
    assert made.output_log_probs.tolist() == [-0.5]
    assert made.untrainable_reason == Untrainable.LENGTH_MISMATCH


def test_no_end_token_is_added() -> None:
    """Field case 148: the row ends with what was sampled."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    body = stream(
        head, chunk({"content": "a"}, "length", token_ids=[5], logprobs=entries(("a", -0.5))), usage_chunk(3, 1)
    )
    assert row(body).output_ids.tolist() == [5]


@pytest.mark.parametrize("prompt", [{}, {"prompt_token_ids": None}, {"prompt_token_ids": []}])
def test_no_prompt_ids_is_no_prompt(prompt: dict[str, Any]) -> None:
    """Field case 150."""
    head = chunk({"role": "assistant", "content": ""}) | prompt
    body = stream(
        head, chunk({"content": "a"}, "stop", token_ids=[5], logprobs=entries(("a", -0.5))), usage_chunk(3, 1)
    )
    assert row(body).untrainable_reason == Untrainable.PROMPT_IDS_MISSING


def test_an_image_is_as_many_ids_as_the_engine_made_of_it() -> None:
    """Field case 151: the prompt's ids are the engine's, counted by none of ours."""
    head = chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, *[9] * 256, 2]}
    body = stream(
        head, chunk({"content": "a"}, "stop", token_ids=[5], logprobs=entries(("a", -0.5))), usage_chunk(258, 1)
    )
    assert (len(row(body).prompt_ids), row(body).trainable) == (258, True)


def test_a_generation_given_up_is_partial_not_an_error() -> None:
    """Field case 175: ``abort`` keeps what was sampled, and trains nothing."""
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    said = chunk({"content": "a"}, token_ids=[5], logprobs=entries(("a", -0.5)))
    made = row(stream(head, said, chunk({}, "abort")), close=closed("aborted"))
    assert (made.status, made.output_ids.tolist(), made.untrainable_reason) == ("aborted", [5], Untrainable.STATUS)


def test_two_versions_in_one_answer_are_two_versions() -> None:
    """Field case 172: each token has its own, or the row a range."""
    said = chunk(
        {"content": "ab"},
        "stop",
        token_ids=[5, 2],
        logprobs=entries(("ab", -0.5), ("", -0.1)),
        weight_versions=[{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}],
    )
    body = stream(chunk({"role": "assistant", "content": ""}) | PROMPT, said, usage_chunk(3, 2))
    made = row(body, engine="embedded")
    assert (made.policy_version_start, made.policy_version_end) == (3, 4)
    plain = row(body.replace(b"weight_versions", b"other"), close=closed(policy_version=9))
    assert (plain.policy_version_start, plain.policy_version_end) == (4, 9)


def test_ids_written_as_text_are_ids() -> None:
    """Older vLLM servers, asked for ``return_tokens_as_token_ids``: no prompt ids, so nothing trains."""
    said = entries(("token_id:504", -0.5), ("token_id:2", -0.25))
    body = stream(chunk({"content": "The"}, "stop", logprobs=said), usage_chunk(3, 2))
    made = row(body)
    assert made.output_ids.tolist() == [504, 2]
    assert made.untrainable_reason == Untrainable.PROMPT_IDS_MISSING


def test_chunks_that_say_everything_again_are_told_by_the_count() -> None:
    """Cumulative ids and log probs, and incremental ones that happen to repeat."""
    first, second = entries(("a", -0.5)), entries(("a", -0.5), ("b", -0.25))
    head = chunk({"role": "assistant", "content": ""}) | PROMPT
    grown = [
        chunk({"content": "a"}, token_ids=[5], logprobs=first),
        chunk({"content": "b"}, "stop", token_ids=[5, 6], logprobs=second),
    ]
    cumulative = row(stream(head, *grown, usage_chunk(3, 2)))
    assert (cumulative.output_ids.tolist(), cumulative.output_log_probs.tolist()) == ([5, 6], [-0.5, -0.25])
    assert cumulative.trainable
    incremental = row(stream(head, *grown, usage_chunk(3, 3)))
    assert incremental.output_ids.tolist() == [5, 5, 6]


def test_the_servers_own_defaults_shape_what_was_never_sent() -> None:
    """A truncation in the model's ``generation_config`` shapes a call that says nothing of it."""
    body = (GOLDEN / "text-stream-asked.txt").read_bytes()
    hidden = opened(sampling_defaults='{"top_p":0.8,"top_k":20}')
    untold = opened(sampling_defaults='{"untold":true}')
    neutral = {"top_p": 1.0, "top_k": -1}
    whole = neutral | {"min_p": 0.0, "repetition_penalty": 1.0}
    assert row(body).trainable
    assert row(body, open=hidden).untrainable_reason == Untrainable.CONSTRAINED
    assert row(body, open=hidden, top_p=1.0).untrainable_reason == Untrainable.CONSTRAINED
    assert row(body, open=hidden, top_p=None, top_k=-1).untrainable_reason == Untrainable.CONSTRAINED
    assert row(body, open=hidden, **neutral).trainable
    assert row(body, open=untold, **neutral).untrainable_reason == Untrainable.CONSTRAINED
    assert row(body, open=untold, **whole).trainable


@pytest.mark.parametrize("name", [p.stem for p in GOLDEN.glob("*asked.txt")])
def test_real_answers_say_what_their_tokens_say(name: str) -> None:
    made = row((GOLDEN / f"{name}.txt").read_bytes(), close=Close(call_id="c", status="ok"))
    assert made.untrainable_reason != Untrainable.TEXT_MISMATCH
