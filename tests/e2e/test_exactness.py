"""What is recorded is what was sampled: against a real model, through a real proxy process, read from Parquet.

Everything here is checked by other means than the code under test: the engine's own bytes are read from the journal
with ``json``, texts come from the OpenAI SDK, and log probs from a fresh fp32 forward pass of transformers.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from forge.client import ControlClient, Ticket
from forge.storage.dataset import Dataset
from forge.storage.frames import Data
from forge.storage.records import Call, CallStatus
from forge.verify.audit import audit
from forge.verify.report import Thresholds
from forge.verify.server_scorer import ServerScorer
from tests.e2e.conftest import Policy
from tests.proxy.process import proxy_process
from tests.proxy.serving import entries

TOLERANCE = 1e-3
"""Nats: fp32 against fp32."""
TOOL = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Run a shell command.",
        "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
    },
}
FORCED = r'<tool_call>\n\{"name": "run", "arguments": \{"cmd": "echo \\"[a-z]{3} ]?\\""\}\}\n</tool_call>'
MESSAGES: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": "Answer in emoji 🦉 and 漢字."}, {"role": "user", "content": "Wie geht's, Привет?"}],
    [{"role": "user", "content": 'Say "token_ids":[1,2,3] and {"logprobs":null}. ' * 8}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
]


@dataclass
class Recorded:
    data: Path
    calls: list[Call]
    received: dict[str, str]
    """Session id to the text that the client received."""
    received_tools: dict[str, str]
    """Session id to the tool arguments that the client received."""


async def ask(ticket: Ticket, body: dict[str, Any], streamed: bool) -> tuple[str, str]:
    """The text and the tool arguments that an OpenAI client gets."""
    async with openai.AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=0) as client:
        return await (stream if streamed else whole)(client, body)


async def stream(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[str, str]:
    text, arguments = "", ""
    async for chunk in await client.chat.completions.create(**body, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            arguments += "".join(t.function.arguments or "" for t in choice.delta.tool_calls or [] if t.function)
    return text, arguments


async def whole(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[str, str]:
    message = (await client.chat.completions.create(**body)).choices[0].message
    calls = [t for t in message.tool_calls or [] if t.type == "function"]
    return message.content or "", "".join(t.function.arguments for t in calls)


@pytest.fixture(scope="module")
def recorded(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return asyncio.run(record(policy, tmp_path_factory.mktemp("recorded") / "data"))


async def record(policy: Policy, data: Path) -> Recorded:
    texts: dict[str, str] = {}
    tools: dict[str, str] = {}
    async with proxy_process(data, policy.url, *policy.options) as proxy:
        async with ControlClient(proxy.control_url, proxy.token) as control:
            for number, (temperature, streamed) in enumerate(
                (t, s) for t in (1.0, 0.7) for s in (True, False) for _ in MESSAGES
            ):
                sampling = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "max_tokens": 24}
                ticket = await control.open_session(task_id=f"text{number}", sampling=sampling)
                body = {"model": "any name", "messages": MESSAGES[number % len(MESSAGES)]}
                texts[ticket.session_id], _ = await ask(ticket, body, streamed)
                await control.close_session(ticket.session_id, status="completed", reward=1.0)
            for streamed in (True, False):
                ticket = await control.open_session(task_id="tool")
                body = {"model": "m", "messages": MESSAGES[0], "tools": [TOOL], "temperature": 1, "max_tokens": 80}
                body["extra_body"] = {"structured_outputs": {"regex": FORCED}}
                _, tools[ticket.session_id] = await ask(ticket, body, streamed)
                await control.close_session(ticket.session_id, status="completed", reward=None)
        assert await proxy.stop() == 0, proxy.log.read_text()
    dataset = Dataset(data)
    calls = list(dataset.calls())
    assert not dataset.damaged
    return Recorded(data, calls, texts, tools)


def test_every_call_is_there_and_whole(recorded: Recorded) -> None:
    assert len(recorded.calls) == len(recorded.received) + len(recorded.received_tools)
    for call in recorded.calls:
        assert call.status == CallStatus.OK, call.error
        assert len(call.output_ids) == len(call.output_log_probs) == call.completion_tokens
        assert len(call.prompt_ids) == call.prompt_tokens
        assert call.trainable == (call.session_id in recorded.received), call.untrainable_reason


def test_prompts_are_the_engine_s_own(recorded: Recorded) -> None:
    said: dict[str, bytes] = {}
    for entry in entries(recorded.data):
        if isinstance(entry.frame, Data):
            said[entry.frame.call_id] = said.get(entry.frame.call_id, b"") + bytes(entry.blobs)
    for call in recorded.calls:
        body = said[call.call_id].decode()
        first = (
            json.loads(body.split("\n\n")[0].removeprefix("data: ")) if body.startswith("data: ") else json.loads(body)
        )
        assert call.prompt_ids.tolist() == first["prompt_token_ids"]


def test_decoded_ids_are_the_text_that_was_received(recorded: Recorded, policy: Policy) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy.model)
    for call in recorded.calls:
        decoded = tokenizer.decode(call.output_ids, skip_special_tokens=True)
        if call.session_id in recorded.received:
            assert decoded.rstrip("\ufffd") == recorded.received[call.session_id].rstrip("\ufffd")
        else:
            markup = json.loads(decoded.strip().removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert json.loads(recorded.received_tools[call.session_id]) == markup["arguments"]


def test_log_probs_are_those_of_a_fresh_forward_pass(recorded: Recorded, policy: Policy) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy.model, dtype=torch.float32).eval()
    worst, tokens = 0.0, 0
    for call in recorded.calls:
        if call.session_id not in recorded.received:
            continue
        temperature = json.loads(call.sampling_sent or "{}")["temperature"]
        ids = torch.tensor([[*call.prompt_ids.tolist(), *call.output_ids.tolist()]])
        with torch.inference_mode():
            logits = model(ids).logits[0, len(call.prompt_ids) - 1 : -1] / temperature
        fresh = logits.log_softmax(-1).gather(1, ids[0, len(call.prompt_ids) :, None]).squeeze(1)
        recorded_ = torch.from_numpy(call.output_log_probs.copy())
        worst = max(worst, float((fresh - recorded_).abs().max()))
        tokens += len(call.output_ids)
    print(f"{tokens} tokens, worst difference {worst:.1e} nats")
    assert tokens > 100
    assert worst < TOLERANCE


def test_samples_carry_them_on(recorded: Recorded) -> None:
    samples = {s.session_id: s for s in Dataset(recorded.data).samples()}
    for call in recorded.calls:
        if call.session_id in recorded.received:
            sample = samples[call.session_id]
            mask = sample.response_mask.astype(bool)
            assert sample.response_ids[mask].tolist() == call.output_ids.tolist()
            assert sample.rollout_log_probs[mask].tolist() == call.output_log_probs.tolist()
            assert sample.prompt_ids.tolist() == call.prompt_ids.tolist()


async def test_the_server_s_own_scores_agree(recorded: Recorded, policy: Policy) -> None:
    """``forge verify --policy``: at temperature 1 by prompt log probs, at 0.7 token by token."""
    key = policy.key_file.read_text() if policy.key_file else ""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"} if key else {}) as http:
        scorer = await ServerScorer.open(http, policy.url)
        dataset = Dataset(recorded.data)
        report = await audit(dataset, dataset.runs()[0], scorer, size=32, limits=Thresholds())
    assert report.findings == []
    assert report.drift is not None
    assert report.drift.left_out == {"not trainable": len(recorded.received_tools)}
    assert report.drift.calls == len(recorded.received)
    assert report.drift.unscored_tokens < report.drift.tokens / 2
    assert report.drift.max < TOLERANCE
