"""Adapters that our trainer saved, loaded live: what is recorded is what base and adapter sampled, and nothing else.

Log probs are checked against a fresh fp32 forward pass of the merged model that was saved beside each adapter. Nothing
else tells one adapter from another: the texts are those of a small model either way.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from forge.client import ControlClient
from forge.policy import weights
from forge.policy.weights import Published
from forge.proxy.upstreams.plan import Adapter
from forge.storage.dataset import Dataset
from forge.storage.records import Call
from forge.trainer.publish import adapter_of
from tests.e2e.conftest import VLLM, Policy
from tests.e2e.test_publication import fresh
from tests.proxy.process import proxy_process

TOLERANCE = 1e-3
"""Nats: fp32 against fp32."""
DIFFERS = 0.01
"""Nats by which another policy is told."""
QUESTION = [{"role": "user", "content": "Tell me of the sea. " * 20}]
"""Long enough to fill whole blocks of a prefix cache."""
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 16, "ignore_eos": True}
"""The limit is the one that vLLM leaves out of a rendered request."""
TOO_HIGH = 32
"""A rank that the server was not started for."""
BEGUN = 3
"""Events after which new weights come."""

pytestmark = [pytest.mark.parametrize("policy", [VLLM], indirect=True), pytest.mark.timeout(900)]


@pytest.fixture
async def as_started(policy: Policy) -> Any:
    """The server as no other test has published to it; and so it is left."""
    async with aiohttp.ClientSession(policy.url) as http:
        await reset(http, policy)
        yield http
        await reset(http, policy)


async def reset(http: aiohttp.ClientSession, policy: Policy) -> None:
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(policy.model)}}
    for path, body in (
        *(("/v1/unload_lora_adapter", {"lora_name": name}) for name in (await models(http))[1:]),
        *(("/collective_rpc", reload), ("/reset_prefix_cache", {})),
        ("/update_weight_version", {"new_version": "default"}),
    ):
        async with http.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()


async def models(http: aiohttp.ClientSession) -> list[str]:
    async with http.get("/v1/models") as answer:
        return [str(entry["id"]) for entry in (await answer.json())["data"]]


def saved(policy: Policy, data: Path) -> Iterator[Published]:
    """Two versions, as the trainer publishes them, of an adapter that has learned something."""
    import torch

    from forge.trainer.model import Scorer

    scorer = Scorer(policy.model, lora_rank=8)
    torch.manual_seed(0)
    for version in (1, 2):
        with torch.no_grad():
            for name, each in scorer.trained().items():
                if ".lora_B." in name:
                    each.normal_(std=0.05)
        weights.publish(data, version, scorer.save, "e2e")
        found = weights.current(data)
        assert found is not None
        yield found


def too_high(policy: Policy, folder: Path) -> Adapter:
    from forge.trainer.model import Scorer

    Scorer(policy.model, lora_rank=TOO_HIGH).model.save_pretrained(folder)
    return Adapter(path=str(folder), base=str(policy.model))


async def ask(control: ControlClient, begun: asyncio.Event | None = None) -> None:
    ticket = await control.open_session(sampling=SAMPLING)
    async with openai.AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=0) as client:
        events = 0
        async for _ in await client.chat.completions.create(model="m", messages=QUESTION, stream=True):  # type: ignore[call-overload]
            events += 1
            if begun is not None and events == BEGUN:
                begun.set()
    await control.close_session(ticket.session_id, status="completed", reward=1.0)


async def publish(control: ControlClient, version: int, found: Published, **members: Any) -> None:
    adapter = members.pop("adapter", None) or adapter_of(found)
    digest = f"{found.digest}-{version}"
    await control.publish(version=version, path=found.path, adapter=adapter, digest=digest, lineage="e2e", **members)


async def test_each_adapter_samples_what_is_recorded_of_it(
    policy: Policy, as_started: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Field cases 172 to 175: over a stream that is cut too."""
    first, second = saved(policy, tmp_path / "weights")
    refused = too_high(policy, tmp_path / "refused")
    begun = asyncio.Event()
    listed: list[list[str]] = []
    async with proxy_process(tmp_path / "data", policy.url, start_s=300.0) as proxy:
        async with ControlClient(proxy.control_url, proxy.token) as control:
            await ask(control)
            for version, found in ((1, first), (2, second)):
                await publish(control, version, found)
                await ask(control)
                listed.append(await models(as_started))
            running = asyncio.ensure_future(ask(control, begun))
            await begun.wait()
            await publish(control, 3, first, mode="abort")
            await running
            listed.append(await models(as_started))
            unchanged = await base_log_probs(as_started)
            await publish(control, 4, second, adapter=refused)
            listed.append(await models(as_started))
            await ask(control)
        assert await proxy.stop() == 0, proxy.log.read_text()
    assert [[name.rpartition("-")[0] for name in names] for names in listed] == [
        ["", "policy:forge-1"],
        ["", "policy:forge-1", "policy:forge-2"],
        ["", "policy:forge-2", "policy:forge-3"],
        [""],
    ]
    calls = sorted(Dataset(tmp_path / "data").calls(), key=lambda call: call.seq)
    paths = {0: policy.model, 1: first.path, 2: second.path, 3: first.path, 4: second.path}
    assert [(call.policy_version_start, call.policy_version_end) for call in calls] == [
        (0, 0), (1, 1), (2, 2), (2, 3), (4, 4),
    ]  # fmt: skip
    assert [call.version_source for call in calls] == [
        "replica_state", "engine_answer", "engine_answer", "replica_state", "replica_state",
    ]  # fmt: skip
    for call in calls:
        checked(call, paths)
    ids, scores = unchanged
    assert scores == pytest.approx(fresh(policy.model, ids[:1], ids[1:]), abs=TOLERANCE)


def checked(call: Call, paths: dict[int, Path]) -> None:
    assert (call.status, call.trainable, call.model_served) == ("ok", True, "policy"), call.untrainable_reason
    ids = call.prompt_ids.tolist(), call.output_ids.tolist()
    assert len(ids[1]) == SAMPLING["max_tokens"]
    start = call.policy_version_start
    assert start is not None
    spans = json.loads(call.version_spans or "null") or [[start, 0, len(ids[1])]]
    found = call.output_log_probs.tolist()
    for version, since, until in spans:
        expected = fresh(paths[version], *ids)[since:until]
        assert found[since:until] == pytest.approx(expected, abs=TOLERANCE), version
        others = {path for path in paths.values() if path != paths[version]}
        for other in others if until - since > 2 else ():
            assert found[since:until] != pytest.approx(fresh(other, *ids)[since:until], abs=DIFFERS), version


async def base_log_probs(http: aiohttp.ClientSession) -> tuple[list[int], list[float]]:
    """Of fixed ids, by the server's own name of its base, while adapters are loaded."""
    ids = list(range(500, 560))
    body = {"model": "policy", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
    async with http.post("/v1/completions", json=body) as answer:
        entries = (await answer.json())["choices"][0]["prompt_logprobs"]
    return ids, [entry[str(token)]["logprob"] for token, entry in zip(ids[1:], entries[1:], strict=True)]
