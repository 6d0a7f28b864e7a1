"""What an engine gives beside ids and log probs: asked for when the run says so, checked against the ids, kept."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.proxy.dialects.base import BadRequest, Overrides
from forge.proxy.engines import ENGINES, extras
from forge.proxy.engines.base import Collect
from forge.proxy.recording.decode import decode_call
from forge.storage.records import Call, Untrainable
from tests.engine import ScriptedEngine, Turn
from tests.proxy.serving import calls, serving
from tests.proxy.test_decode import closed, opened
from tests.proxy.wire import USER, answer, run, send, text

PROMPT, OUTPUT = [1, 2, 3], [5, 6]
EXPERTS = np.arange(4 * 2 * 2).reshape(4, 2, 2)
ALL = {"top_logprobs": 3, "prompt_logprobs": True, "routed_experts": True, "sampling_mask": True}


def npy(array: Any) -> str:
    out = io.BytesIO()
    np.save(out, array, allow_pickle=False)
    return base64.b64encode(out.getvalue()).decode()


def bare(array: Any) -> str:
    return base64.b64encode(np.asarray(array, dtype="<i4").tobytes()).decode()


def ids(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32])
def test_vllms_experts_keep_their_shape(kind: Any) -> None:
    found = extras.routed_experts(npy(EXPERTS.astype(kind)), 5)
    assert found is not None
    array = np.load(io.BytesIO(found), allow_pickle=False)
    assert array.dtype == np.uint8
    assert array.tolist() == EXPERTS.tolist()


def test_sglangs_experts_are_rows_of_an_untold_shape() -> None:
    found = extras.routed_experts(bare(EXPERTS + 300), 5)
    assert found is not None
    array = np.load(io.BytesIO(found), allow_pickle=False)
    assert (array.dtype, array.tolist()) == (np.uint16, (EXPERTS + 300).reshape(4, -1).tolist())


@pytest.mark.parametrize(
    "told",
    [
        *(npy(EXPERTS[:3]), npy(EXPERTS.astype(float)), npy(EXPERTS - 1), npy(EXPERTS[:, 0, 0]), npy([object] * 0)),
        *(bare(range(7)), bare([]), "%%%", "", None, 7, base64.b64encode(b"\x93NUMPY broken").decode()),
    ],
)
def test_experts_that_do_not_fit_the_ids_are_left_out(told: Any) -> None:
    assert extras.routed_experts(told, 5) is None


def test_a_prompts_scores_are_those_of_its_own_ids() -> None:
    """Field case 135: null at the first place; -9999 stands for none."""
    scores = [None, {"9": {"logprob": -3.0}, "2": {"logprob": -0.5, "rank": 1}}, {"3": {"logprob": -9999.0}}]
    found = extras.prompt_log_probs(scores, ids(1, 2, 3))
    assert [None if np.isnan(value) else float(value) for value in found] == [None, -0.5, None]
    for bad in (scores[:2], [None, {"9": {"logprob": -1.0}}, None], "x", None, [1, 2, 3], [None, {"2": "x"}, None]):
        assert len(extras.prompt_log_probs(bad, ids(1, 2, 3))) == 0


def test_kept_ids_hold_what_was_sampled() -> None:
    assert json.loads(extras.sampling_mask([[5, 7], [6]], ids(*OUTPUT)) or b"") == [[5, 7], [6]]
    for bad in ([[5]], [[5], [7]], [[5], None], [["a"], [6]], None, {}):
        assert extras.sampling_mask(bad, ids(*OUTPUT)) is None


def whole(**choice: Any) -> dict[str, Any]:
    entries = [{"token": piece, "logprob": -0.5, "top_logprobs": []} for piece in ("a", "b")]
    made = {"index": 0, "message": {"role": "assistant", "content": "ab"}, "logprobs": {"content": entries}}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": "x", "choices": [made | {"finish_reason": "stop"} | choice], "usage": usage}


def row(document: dict[str, Any], engine: str = "vllm", **sent: Any) -> Call:
    asked = json.dumps({"messages": [USER], "temperature": 1.0} | sent).encode()
    (made,) = decode_call(opened(engine=engine), asked, asked, json.dumps(document).encode(), closed())
    return made


def test_vllms_row_has_them() -> None:
    scores = [None, {"2": {"logprob": -1.0}}, {"3": {"logprob": -2.0}}]
    members = {"prompt_token_ids": PROMPT, "prompt_logprobs": scores}
    made = row(whole(token_ids=OUTPUT, routed_experts=npy(EXPERTS)) | members)
    assert made.trainable
    assert made.routed_experts is not None
    assert np.load(io.BytesIO(made.routed_experts)).shape == (4, 2, 2)
    assert made.prompt_log_probs[1:].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("place", ["sglext", "meta_info"])
def test_sglangs_row_has_them_wherever_it_writes_them(place: str) -> None:
    """With ``return_meta_info`` they stand there, else beside the ids."""
    extension: dict[str, Any] = {"input_ids": PROMPT, "output_ids": [OUTPUT]}
    meta: dict[str, Any] = {"output_token_sampling_mask": [[5, 8], [6]]}
    (extension if place == "sglext" else meta)["routed_experts"] = bare(EXPERTS)
    made = row(whole(meta_info=meta) | {"sglext": extension}, "sglang", top_p=0.9)
    assert made.routed_experts is not None
    assert json.loads(made.sampling_mask or b"") == [[5, 8], [6]]
    assert made.trainable, "what was left out is known"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [({"top_p": 0.9}, None), ({"top_k": 5}, None), ({"min_p": 0.1}, None), ({"presence_penalty": 1}, "constrained")],
)
def test_a_truncated_row_trains_where_the_kept_ids_are_known(sent: dict[str, Any], reason: str | None) -> None:
    """Field case 154 and design: any other shaping stays what it is."""
    ids_there = {"sglext": {"input_ids": PROMPT, "output_ids": [OUTPUT]}}
    told = whole(meta_info={"output_token_sampling_mask": [[5, 8], [6]]}) | ids_there
    assert row(told, "sglang", **sent).untrainable_reason == reason
    assert row(whole() | ids_there, "sglang", **sent).untrainable_reason == Untrainable.CONSTRAINED
    wrong = whole(meta_info={"output_token_sampling_mask": [[8], [6]]}) | ids_there
    assert row(wrong, "sglang", **sent).untrainable_reason == Untrainable.CONSTRAINED


@pytest.mark.parametrize(
    ("engine", "dialect", "stream", "asked"),
    [
        ("vllm", "chat", False, {"top_logprobs": 3, "prompt_logprobs": 0}),
        ("vllm", "chat", True, {"top_logprobs": 3}),
        ("vllm", "completions", False, {"logprobs": 3, "prompt_logprobs": 0}),
        ("sglang", "chat", True, {"top_logprobs": 3, "return_routed_experts": True}),
        (
            *("sglang", "chat", False),
            {"top_logprobs": 3, "return_routed_experts": True, "return_sampling_mask": True, "return_meta_info": True},
        ),
        ("sglang", "completions", True, {"logprobs": 3, "return_routed_experts": True}),
        ("openai", "chat", False, {}),
    ],
)
def test_they_are_asked_for_only_if_the_run_says_so(engine: str, dialect: str, stream: bool, asked: Any) -> None:
    names = {"top_logprobs", "prompt_logprobs", "return_routed_experts", "return_sampling_mask", "return_meta_info"}
    request = {"messages": [USER], "stream": stream} if dialect == "chat" else {"prompt": "a", "stream": stream}
    plain = json.loads(send(dialect, request, engine=engine).body)
    assert not names & set(plain)
    outgoing = send(dialect, request, engine=engine, overrides=Overrides(sampling={"temperature": 1.0} | ALL))
    sent = json.loads(outgoing.body)
    assert {name: sent[name] for name in asked} == asked
    assert not (names - set(asked)) & set(sent)
    assert json.loads(outgoing.sampling_sent or "{}") == {"temperature": 1.0}


def test_the_harness_gets_none_of_it() -> None:
    outgoing = send("chat", {"messages": [USER]}, overrides=Overrides(sampling=ALL))
    plain = whole(token_ids=None) | {"prompt_logprobs": None, "prompt_token_ids": None}
    plain["choices"][0]["logprobs"] = None
    given = whole(token_ids=OUTPUT) | {"prompt_logprobs": [None, {"2": {"logprob": -1.0}}], "prompt_token_ids": PROMPT}
    got = json.loads(text(run(answer("chat", outgoing), json.dumps(given).encode())))
    assert got == plain


@pytest.mark.parametrize("bad", [{"top_logprobs": "many"}, {"routed_experts": 1}])
def test_a_run_that_asks_for_nonsense_is_told(bad: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="sampling cannot be read"):
        send("chat", {"messages": [USER]}, overrides=Overrides(sampling=bad))


def test_what_a_run_may_name_is_what_engines_may_give() -> None:
    assert set(asdict(Collect())) == set(ALL)
    for engine in ENGINES.values():
        assert engine.ask({}, stream=False) == engine.ask({}, stream=False, collect=Collect())


async def test_the_alternatives_and_the_servers_defaults_reach_the_row(tmp_path: Path) -> None:
    engine = ScriptedEngine()
    engine.hidden = {"top_p": 0.8}
    async with serving(tmp_path, engine, record="best-effort", sampling={"top_logprobs": 2}) as s:
        engine.script(Turn("one two"))
        async with s.chat() as got:
            assert (await got.json())["choices"][0]["logprobs"] is None
        (made,) = calls(s.data)
    assert [len(alternatives) for alternatives in json.loads(made.top_logprobs or "[]")] == [2, 2, 2]
    assert json.loads(made.sampling_defaults or "{}") == {"untold": True}
