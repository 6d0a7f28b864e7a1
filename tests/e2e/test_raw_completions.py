"""Raw completions and Gemini's format against a real model, through a real proxy process, read from Parquet."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from google import genai
from google.genai import types
from openai import AsyncOpenAI

from forge.client import ControlClient, Ticket
from forge.storage.dataset import Dataset
from forge.storage.records import Call
from tests.e2e.conftest import Policy
from tests.proxy.process import proxy_process

TOLERANCE = 1e-3
"""Nats: fp32 against fp32."""
PROMPT = "The capital of France is"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_a_raw_prompt_and_its_continuation_are_one_exact_row(
    policy: Policy, tmp_path: Path, streamed: bool
) -> None:
    async with proxy_process(tmp_path / "data", policy.url, *policy.options) as proxy:
        async with ControlClient(proxy.control_url, proxy.token) as control:
            ticket = await control.open_session(task_id="raw", sampling=SAMPLING)
            first = await complete(ticket, PROMPT, streamed)
            (call,) = await control.calls(ticket.session_id)
            told = [*np.asarray(call.prompt_ids).tolist(), *np.asarray(call.output_ids).tolist()]
            await complete(ticket, [*told, *told[:3]], streamed)
            await control.close_session(ticket.session_id, status="completed", reward=1.0)
        assert await proxy.stop() == 0, proxy.log.read_text()
    dataset = Dataset(tmp_path / "data")
    earlier, later = dataset.calls()
    check(earlier, policy, PROMPT, first)
    assert later.prompt_ids.tolist() == [*told, *told[:3]]
    (sample,) = dataset.samples()
    mask = sample.response_mask.astype(bool)
    assert sample.prompt_ids.tolist() == earlier.prompt_ids.tolist()
    assert sample.response_ids[mask].tolist() == [*earlier.output_ids.tolist(), *later.output_ids.tolist()]
    assert sample.rollout_log_probs[mask].tolist() == [*earlier.output_log_probs, *later.output_log_probs]


async def complete(ticket: Ticket, prompt: str | list[int], streamed: bool) -> str:
    async with AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=0) as client:
        if not streamed:
            answer = await client.completions.create(model="any name", prompt=prompt, max_tokens=12)
            return answer.choices[0].text
        stream = await client.completions.create(model="any name", prompt=prompt, max_tokens=12, stream=True)
        return "".join([choice.text async for chunk in stream for choice in chunk.choices])


def check(call: Call, policy: Policy, prompt: str, said: str) -> None:
    """Ids, text and log probs agree with each other, by other means than the code under test."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy.model)
    model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32).eval()
    assert (call.dialect, call.trainable, call.untrainable_reason) == ("completions", True, None)
    assert call.prompt_ids.tolist() == tokenizer(prompt).input_ids
    assert tokenizer.decode(call.output_ids, skip_special_tokens=True).rstrip("\ufffd") == said.rstrip("\ufffd")
    assert json.loads(call.response or "")["content"] == said
    ids = torch.tensor([[*call.prompt_ids.tolist(), *call.output_ids.tolist()]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(call.prompt_ids) - 1 : -1]
    fresh = logits.log_softmax(-1).gather(1, ids[0, len(call.prompt_ids) :, None]).squeeze(1)
    assert float((fresh - torch.from_numpy(call.output_log_probs.copy())).abs().max()) < TOLERANCE


@pytest.mark.filterwarnings("ignore:Inheritance class Aiohttp:DeprecationWarning")
async def test_a_chat_by_googles_sdk_is_one_exact_row(policy: Policy, tmp_path: Path) -> None:
    async with proxy_process(tmp_path / "data", policy.url, *policy.options) as proxy:
        async with ControlClient(proxy.control_url, proxy.token) as control:
            ticket = await control.open_session(task_id="chat", sampling=SAMPLING | {"max_tokens": 16})
            options = types.HttpOptions(base_url=ticket.base_url.removesuffix("/v1"))
            client = genai.Client(api_key=ticket.api_key, http_options=options)
            chat = client.aio.chats.create(model="any name")
            texts = [(await chat.send_message("What is the capital of France?")).text or ""]
            texts.append("".join([part.text or "" async for part in await chat.send_message_stream("And of Italy?")]))
            counted = await client.aio.models.count_tokens(model="any name", contents="What is the capital of France?")
            await client.aio.aclose()
            client.close()
            await control.close_session(ticket.session_id, status="completed", reward=1.0)
        assert await proxy.stop() == 0, proxy.log.read_text()
    dataset = Dataset(tmp_path / "data")
    calls = list(dataset.calls())
    assert [(call.dialect, call.trainable, call.finish_reason is not None) for call in calls] == [
        ("gemini", True, True)
    ] * 2
    assert [json.loads(call.response or "")["content"] for call in calls] == texts
    assert counted.total_tokens == len(calls[0].prompt_ids)
    assert calls[1].prompt_ids[: len(calls[0].prompt_ids)].tolist() == calls[0].prompt_ids.tolist()
