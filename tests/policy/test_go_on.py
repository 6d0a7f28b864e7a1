"""An answer that was given up goes on from its ids: by the route itself, and through the proxy under a publication."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from forge.client import ControlClient
from forge.proxy.app import serve
from forge.proxy.config import ProxyConfig
from tests.policy.served import Json, Served, serving
from tests.proxy.serving import calls

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]

USER = [{"role": "user", "content": "Wie hei\u00dft Du? \u4f60\u597d"}]
EXACT: Json = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
CONTINUE = "/v1/chat/completions/continue"
WAIT_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tiny: Callable[[int], Path]) -> AsyncIterator[Served]:
    async with serving(tiny(0)) as running:
        yield running


@pytest.mark.parametrize("cut", [0, 1, 9, 23])
async def test_the_rest_is_what_would_have_come(served: Served, cut: int) -> None:
    request: Json = {"messages": USER, "max_tokens": 24, "temperature": 0, **EXACT}
    _, whole = await served.post("/v1/chat/completions", request)
    choice, prompt = whole["choices"][0], whole["prompt_token_ids"]
    ids = choice["token_ids"]
    asked = {"request": request, "prompt_ids": prompt, "output_ids": ids[:cut], "id": "chatcmpl-x", "created": 7}
    status, rest = await served.post(CONTINUE, asked)
    assert status == 200, rest
    (said,) = rest["choices"]
    assert (rest["id"], rest["created"], rest["usage"]["completion_tokens"]) == ("chatcmpl-x", 7, len(ids))
    assert said["message"] == choice["message"]
    assert said["token_ids"] == ids[cut:]
    found = [entry["logprob"] for entry in said["logprobs"]["content"]]
    assert found == pytest.approx([e["logprob"] for e in choice["logprobs"]["content"]][cut:], abs=1e-3)
    assert said["weight_versions"] == [{"version": "0", "start": cut, "end": len(ids)}]
    events = [e async for e in served.events(CONTINUE, asked | {"request": request | {"stream": True}})]
    assert [token for e in events for c in e["choices"] for token in c["token_ids"]] == ids[cut:]
    assert all("role" not in c["delta"] for e in events for c in e["choices"])
    assert events[-1]["usage"]["completion_tokens"] == len(ids)


async def test_a_grammar_goes_on_where_it_was(served: Served) -> None:
    request: Json = {"messages": USER, "max_tokens": 64, "temperature": 0, **EXACT}
    request["structured_outputs"] = {"regex": "(abc|abd){3}!"}
    _, whole = await served.post("/v1/chat/completions", request)
    ids = whole["choices"][0]["token_ids"]
    asked = {
        "request": request,
        "prompt_ids": whole["prompt_token_ids"],
        "output_ids": ids[:2],
        "id": "x",
        "created": 7,
    }
    _, rest = await served.post(CONTINUE, asked)
    assert rest["choices"][0]["message"]["content"] == whole["choices"][0]["message"]["content"]


async def test_an_answer_that_had_ended_has_no_rest(served: Served) -> None:
    request: Json = {"messages": USER, "max_tokens": 3, "temperature": 0}
    asked = {"request": request, "prompt_ids": [1, 2], "output_ids": [5, 6, 7], "id": "x", "created": 7}
    assert (await served.post(CONTINUE, asked))[0] == 400


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_new_weights_in_the_middle_of_an_answer(
    tiny: Callable[[int], Path], score: Callable[..., list[float]], tmp_path: Path, stream: bool
) -> None:
    """Field cases 172, 175: tokens of the old version, then of the new one, each scored by its own weights."""
    async with serving(tiny(0)) as policy:
        config = ProxyConfig(
            data=tmp_path / "data", run_id="run", upstreams=(policy.base,), port=0, control_port=0, decoder=False
        )
        async with (
            serve(config) as proxy,
            ControlClient(proxy.control_url, proxy.control_token) as control,
            aiohttp.ClientSession() as http,
        ):
            body = {"messages": USER, "max_tokens": 600, "temperature": 1.0, "ignore_eos": True, "stream": stream}
            call = asyncio.ensure_future(_said(http, proxy.base_url, body))
            async with asyncio.timeout(WAIT_S):
                while not any(job.answer.ids[20:] for job in policy.server.scheduler._running):
                    await asyncio.sleep(0.002)
                await control.publish(version=1, path=tiny(2), mode="abort")
                text = await call
    assert '"finish_reason":"abort"' not in text
    (row,) = calls(tmp_path / "data")
    assert (row.status, row.finish_reason, row.trainable, len(row.output_ids)) == ("ok", "length", True, 600)
    (old, new) = json.loads(row.version_spans or "")
    assert (old[0], old[1], new[0], new[2], row.version_source) == (0, 0, 1, 600, "engine_spans")
    at = new[1]
    assert at == old[2] > 20
    prompt, ids, log_probs = row.prompt_ids.tolist(), row.output_ids.tolist(), row.output_log_probs.tolist()
    assert log_probs[:at] == pytest.approx(score(tiny(0), prompt, ids)[:at], abs=1e-3)
    assert log_probs[at:] == pytest.approx(score(tiny(2), prompt, ids)[at:], abs=1e-3)
    if stream:
        deltas = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert len({one["id"] for one in deltas}) == 1
        said = "".join(c["delta"].get("content") or "" for one in deltas for c in one["choices"])
    else:
        said = json.loads(text)["choices"][0]["message"]["content"]
    assert said == json.loads(row.response or "")["content"]


async def _said(http: aiohttp.ClientSession, base: str, body: Json) -> str:
    async with http.post(f"{base}/chat/completions", json=body) as answer:
        assert answer.status == 200
        return await answer.text()
