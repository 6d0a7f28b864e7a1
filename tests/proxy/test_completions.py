from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.proxy.dialects.base import BadRequest, Hold, Overrides
from forge.proxy.engines import ENGINES
from forge.proxy.engines.unstreamed import as_stream
from forge.proxy.recording.decode import decode_call
from forge.proxy.recording.worth import constrained
from forge.storage.frames import Close, Open
from forge.storage.records import Call, Untrainable
from tests.engine import Fault, Turn
from tests.proxy.serving import calls, serving
from tests.proxy.wire import CALL_ID, answer, run, send, stream, text

QUOTED = 'keys: "token_ids":[1,2], {"prompt_token_ids":[3],"logprobs":null} and \\"text\\":[4]'
HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "policy"}


def ask(members: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """What is added to a request, and what is taken out or changed."""
    asked = {"model": "policy", "prompt": "hi"} | (members or {})
    sent = json.loads(send("completions", asked, **more).body)
    return {name: value for name, value in sent.items() if name not in asked or asked[name] != value} | {
        name: None for name in asked if name not in sent
    }


# Requests


@pytest.mark.parametrize("engine", ["vllm", "embedded", "openai"])
def test_the_harnesss_bytes_stay_and_what_we_ask_is_appended(engine: str) -> None:
    for streams in (False, True):
        body = f'{{ "model":"m","prompt" : "a\\u00e9",  "stream":{str(streams).lower()}, "x":[1 ,2] }}'.encode()
        outgoing = send("completions", body, engine=engine)
        assert outgoing.body.startswith(body[:-2])
        assert (outgoing.path, outgoing.stream) == ("/v1/completions", streams)
        added = json.loads(outgoing.body)
        usage = {"stream_options": {"include_usage": True}} if streams else {}
        tokens = {} if engine == "openai" else {"return_token_ids": True, "logprobs": 0}
        assert {name: added[name] for name in added if name not in ("model", "prompt", "stream", "x")} == tokens | usage


def test_what_the_harness_asks_for_itself_is_not_asked_again() -> None:
    assert ask({"logprobs": 0}) == {"return_token_ids": True}
    assert ask({"logprobs": 5, "return_token_ids": True}) == {}
    assert ask({"logprobs": None}) == {"return_token_ids": True, "logprobs": 0}


def test_an_echo_is_asked_nothing_because_ids_would_take_its_text_away() -> None:
    assert ask({"echo": True, "max_tokens": 0}) == {}
    assert ask({"echo": True, "stream": True}) == {"stream_options": {"include_usage": True}}
    assert ask({"echo": False}) == {"return_token_ids": True, "logprobs": 0}


def test_limits_keep_the_formats_small_default() -> None:
    tokens = {"return_token_ids": True, "logprobs": 0}
    assert ask(overrides=Overrides(max_tokens_cap=100, context_len=4096)) == tokens
    assert ask(overrides=Overrides(max_tokens_cap=5)) == tokens | {"max_tokens": 5}
    assert ask({"max_tokens": 50}, overrides=Overrides(max_tokens_cap=30)) == tokens | {"max_tokens": 30}
    assert ask({"max_tokens": 5000}, overrides=Overrides(context_len=4096)) == tokens
    run = Overrides(sampling={"temperature": 1.0, "max_tokens": 512}, model="policy")
    assert ask(overrides=run) == tokens | {"temperature": 1.0}
    assert ask({"temperature": 0, "top_k": 5}, overrides=run) == tokens | {"temperature": 1.0, "top_k": None}


@pytest.mark.parametrize(
    ("prompt", "count"), [("hi", 1), ([1, 2], 1), (["a", "b", "c"], 3), ([[1], [2, 3]], 2), ([], 1), (None, 1), (7, 1)]
)
def test_each_prompt_has_its_choices(prompt: Any, count: int) -> None:
    asked = {"prompt": prompt, "stream": True, "n": 2}
    got = answer("completions", send("completions", asked))
    finished = [raw_chunk("x", index=index, finish="stop") for index in range(2 * count)]
    got.feed(stream(*finished[:-1], done=False))
    assert not got.complete
    got.feed(stream(finished[-1]))
    assert got.complete


def test_bad_requests() -> None:
    with pytest.raises(BadRequest, match="not a JSON object"):
        send("completions", b"[1]")
    with pytest.raises(BadRequest, match="max_tokens"):
        send("completions", {"prompt": "x", "max_tokens": "5"})


# Answers


def raw_chunk(said: str, index: int = 0, finish: str | None = None, **members: Any) -> dict[str, Any]:
    nothing = {"logprobs": None, "prompt_token_ids": None, "token_ids": None}
    if members.get("logprobs"):
        members["logprobs"]["tokens"] = [said, *[""] * (len(members["logprobs"]["tokens"]) - 1)]
    choice = {"index": index, "text": said, "finish_reason": finish, "stop_reason": None} | nothing | members
    return HEAD | {"choices": [choice]}


def scores(*values: float | None, tops: int = 0) -> dict[str, Any]:
    return {
        "text_offset": list(range(len(values))),
        "token_logprobs": list(values),
        "tokens": ["t"] * len(values),
        "top_logprobs": [
            None if value is None else {"t": value} | {f"a{n}": -n for n in range(tops)} for value in values
        ],
    }


ASKED = [
    raw_chunk("Hé", token_ids=[5, 6], logprobs=scores(-0.5, -0.25), prompt_token_ids=[1, 2, 3]),
    raw_chunk(QUOTED, token_ids=[7], logprobs=scores(None)),
    raw_chunk("", finish="stop", token_ids=[2], logprobs=scores(-9999.0)),
]
USAGE = HEAD | {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}


def test_a_stream_loses_what_only_we_asked_for() -> None:
    plain = [raw_chunk("Hé"), raw_chunk(QUOTED), raw_chunk("", finish="stop") | {"system_fingerprint": "f"}]
    got = answer("completions", send("completions", {"prompt": "x", "stream": True}))
    pieces = run(got, stream(*ASKED, USAGE | {"system_fingerprint": "f"}))
    assert text(pieces) == stream(*plain)
    assert [piece.hold for piece in pieces] == [Hold.NOTHING, Hold.CLOSE, Hold.CLOSE]
    assert (got.complete, got.finish_reason, got.error) == (True, "stop", None)


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    got = answer("completions", send("completions", {"prompt": "x", "stream": True}))
    pieces = run(got, stream(ASKED[0], done=False))
    assert b"broke off" in pieces[-1].data
    assert not got.complete


@settings(max_examples=40)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.integers(1, 40))
def test_however_it_is_cut(said: list[str], size: int) -> None:
    documents = [raw_chunk(part, token_ids=[n], logprobs=scores(-0.5)) for n, part in enumerate(said)]
    body = stream(*documents, raw_chunk("", finish="length", token_ids=[2]), USAGE)
    outgoing = send("completions", {"prompt": "x", "stream": True})
    expected = stream(*[raw_chunk(part) for part in said], raw_chunk("", finish="length"))
    assert text(run(answer("completions", outgoing), body, cut=size)) == expected


def test_every_split_point() -> None:
    body = stream(*ASKED, USAGE)
    outgoing = send("completions", {"prompt": "x", "stream": True})
    expected = text(run(answer("completions", outgoing), body))
    for at in range(len(body)):
        got = answer("completions", outgoing)
        assert text([*got.feed(body[:at]), *got.feed(body[at:]), *got.finish()]) == expected


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_bytes_are_the_engines(tmp_path: Path, streams: bool) -> None:
    async with serving(tmp_path) as s:
        for said in ("Hello there, you.", QUOTED, "naïve 漢字 👩‍🚀\nnext\ttab", ""):
            for members in ({}, {"logprobs": 1}, {"logprobs": 0, "return_token_ids": True}, {"prompt": [0, 1, 0]}):
                for options in [{}, {"stream_options": {"include_usage": True}}] if streams else [{}]:
                    body = {"model": "policy", "prompt": "say it", "stream": streams} | members | options
                    got = []
                    for base in (f"{s.engine.url}/v1", s.proxy.base_url):
                        s.engine.script(Turn(said))
                        async with s.http.post(f"{base}/completions", json=body) as reply:
                            assert reply.status == 200
                            got.append((reply.headers["Content-Type"], await reply.read()))
                    assert got[0] == got[1], (said, members, options)


async def test_a_whole_body_in_place_of_a_stream_becomes_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(Turn("Hello there", fault=Fault(json_to_stream=True)))
        body = {"model": "policy", "prompt": "x", "stream": True}
        async with s.http.post(f"{s.proxy.base_url}/completions", json=body) as reply:
            received = await reply.read()
        assert re.findall(rb'"text":"([^"]*)"', received) == [b"Hello there"]
        assert received.endswith(b"data: [DONE]\n\n")
        assert b'"token_ids":[' not in received
    (row,) = calls(s.data)
    assert row.trainable


async def test_a_used_up_budget_is_a_finished_text(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(budgets={"calls": 1})
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        for streams in (False, False, True):
            body = {"model": "policy", "prompt": "x", "stream": streams}
            async with s.http.post(f"{ticket.base_url}/completions", json=body, headers=headers) as reply:
                said = await reply.read()
        (choice,) = json.loads(re.findall(rb"data: (\{.*\})", said)[0])["choices"]
        assert "budget of calls" in choice["text"]
        assert choice["finish_reason"] == "stop"
        assert len(s.engine.served) == 1


# Rows


def rows(body: bytes, **sent: Any) -> list[Call]:
    asked = json.dumps({"model": "policy", "prompt": "x", "logprobs": 0} | sent).encode()
    opened = Open(
        call_id=CALL_ID,
        session_id="s",
        run_id="r",
        boot=1,
        mono_us=5,
        writer=2,
        wall_us=77,
        dialect="completions",
        path="/v1/completions",
        stream=True,
        request_len=0,
        engine="vllm",
        replica="http://a",
        policy_version=4,
        version_source="replica_state",
    )
    closed = Close(call_id=CALL_ID, status="ok", http_status=200, content_type="text/event-stream")
    return decode_call(opened, asked, asked, body, closed)


def whole(*choices: dict[str, Any], prompt: int, output: int) -> bytes:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return json.dumps(HEAD | {"choices": list(choices), "usage": usage}).encode()


@pytest.mark.parametrize("kind", ["stream", "whole"])
def test_a_row_holds_what_was_sampled(kind: str) -> None:
    choice = raw_chunk(
        f"Hé{QUOTED}",
        finish="stop",
        token_ids=[5, 6, 7, 2],
        logprobs=scores(-0.5, -0.25, -1.5, -0.125, tops=1),
        prompt_token_ids=[1, 2, 3],
    )["choices"][0]
    body = whole(choice, prompt=3, output=4)
    (row,) = rows(as_stream(body) if kind == "stream" else body)
    assert (row.trainable, row.untrainable_reason, row.finish_reason) == (True, None, "stop")
    assert (list(row.prompt_ids), list(row.output_ids)) == ([1, 2, 3], [5, 6, 7, 2])
    assert list(row.output_log_probs) == [-0.5, -0.25, -1.5, -0.125]
    assert (row.prompt_tokens, row.completion_tokens) == (3, 4)
    assert (row.messages, row.tools) == ("[]", None)
    assert json.loads(row.response or "") == {"role": "assistant", "content": f"Hé{QUOTED}"}
    assert b'"prompt"' in (row.request_raw or b"")
    tops = json.loads(row.top_logprobs or "")
    assert [[entry["token"] for entry in token] for token in tops] == [["t", "a0"]] * 4


def test_what_an_engine_cannot_score_is_missing_and_never_a_number() -> None:
    """Field case 136."""
    (row,) = rows(stream(*ASKED, USAGE))
    assert list(np.isnan(row.output_log_probs)) == [False, False, True, True]
    assert row.untrainable_reason == Untrainable.LOG_PROBS_INVALID.value


@pytest.mark.parametrize("kind", ["stream", "whole"])
def test_each_prompt_and_choice_is_a_row_with_its_own_prompt(kind: str) -> None:
    choices = [
        raw_chunk(f"t{n}", index=n, finish="stop", token_ids=[n], logprobs=scores(-0.5), prompt_token_ids=prompt)[
            "choices"
        ][0]
        for n, prompt in enumerate([[1], [1], [2, 3], [2, 3]])
    ]
    body = whole(*choices, prompt=3, output=4)
    made = rows(as_stream(body) if kind == "stream" else body, prompt=["a", "b c"], n=2)
    assert [(list(row.prompt_ids), list(row.output_ids), row.prompt_tokens, row.trainable) for row in made] == [
        ([1], [0], 1, True),
        ([1], [1], 1, True),
        ([2, 3], [2], 2, True),
        ([2, 3], [3], 2, True),
    ]
    assert [row.choice for row in made] == [0, 1, 2, 3]


def test_an_echo_is_kept_but_not_trained_on() -> None:
    (silent,) = rows(stream(raw_chunk("prompt and answer", finish="stop"), USAGE), echo=True)
    assert silent.untrainable_reason == Untrainable.PROMPT_IDS_MISSING.value
    echoed = raw_chunk(
        "answer", finish="stop", token_ids=[5], prompt_token_ids=[1, 2, 3], logprobs=scores(None, -1.0, -2.0, -0.5)
    )
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    (own,) = rows(stream(echoed, USAGE | {"usage": usage}), echo=True, return_token_ids=True)
    assert (own.trainable, list(own.output_log_probs)) == (True, [-0.5])


def test_the_best_of_several_was_not_sampled_from_the_policy() -> None:
    assert constrained({"prompt": b'"x"', "best_of": b"3"})
    assert not constrained({"prompt": b'"x"', "best_of": b"1"})


def test_a_broken_body_is_no_row_with_tokens() -> None:
    (row,) = rows(b'{"choices":[{"index":0,"text":5}]}')
    assert (row.trainable, len(row.output_ids)) == (False, 0)
    assert "not a chat completion" in (row.error or "")
    with pytest.raises(ValueError, match="not a chat completion"):
        as_stream(b'{"choices":[{"index":0}]}')
    assert ENGINES["vllm"].read_stream(stream(raw_chunk("x")))[0].finish_reason is None
