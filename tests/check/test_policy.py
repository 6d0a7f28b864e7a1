"""The scripted policy server over HTTP: whole and streamed are one answer, and what it remembers is what it sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from forge.harness_check.policy import ScriptedPolicy

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
ASKED = {"model": "x", "messages": [{"role": "user", "content": "go"}]}


@pytest.fixture
async def policy() -> AsyncIterator[ScriptedPolicy]:
    policy = ScriptedPolicy()
    async with policy.listening():
        yield policy


async def ask(policy: ScriptedPolicy, **more: Any) -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{policy.url}/v1/chat/completions", json=ASKED | more) as answer,
    ):
        assert answer.status == 200
        return await answer.text()


def chunks(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("tools", [None, TOOLS])
async def test_whole_and_streamed_are_one_answer(policy: ScriptedPolicy, tools: list[Any] | None) -> None:
    whole = json.loads(await ask(policy, tools=tools))
    streamed = chunks(await ask(policy, tools=tools, stream=True, stream_options={"include_usage": True}))
    choice = whole["choices"][0]
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert streamed[-1]["usage"] == whole["usage"]
    parts = [each["choices"][0] for each in streamed[:-1]]
    assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
    assert [entry for part in parts for entry in part["logprobs"]["content"]] == choice["logprobs"]["content"]
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["finish_reason"] == choice["finish_reason"] == ("tool_calls" if tools else "stop")
    text = "".join(part["delta"].get("content") or "" for part in parts)
    assert text == (choice["message"]["content"] or "")
    if tools:
        calls = [call for part in parts for call in part["delta"].get("tool_calls", ())]
        arguments = "".join(call["function"]["arguments"] for call in calls)
        assert arguments == choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert calls[0]["function"]["name"] == "bash"
    first, second = policy.served
    assert first == second
    assert (first.prompt_ids, first.output_ids) == (whole["prompt_token_ids"], choice["token_ids"])
    assert whole["usage"]["completion_tokens"] == len(choice["logprobs"]["content"]) == len(first.output_ids)


async def test_a_limit_cuts_the_answer_and_says_so(policy: ScriptedPolicy) -> None:
    whole = json.loads(await ask(policy, max_tokens=1))
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == len(policy.served[0].output_ids) == 1


async def test_without_asking_there_is_no_usage_chunk(policy: ScriptedPolicy) -> None:
    assert all("usage" not in each for each in chunks(await ask(policy, stream=True)))
