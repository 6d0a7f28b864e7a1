"""Every log prob equals a fresh fp32 forward pass, whatever shares the batch and whatever KV was reused."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.policy.served import Json, serving

pytestmark = pytest.mark.model

TOLERANCE = 1e-4
Score = Callable[..., list[float]]
Tiny = Callable[[int], Path]


def ids(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 49152) for _ in range(length)]


def check(directory: Path, prompt: list[int], choice: Json, score: Score, temperature: float = 1.0) -> float:
    """The largest difference to a fresh forward pass."""
    output: list[int] = choice["token_ids"]
    found: list[float] = choice["logprobs"]["token_logprobs"]
    assert len(output) == len(found) == choice["usage"]["completion_tokens"]
    assert choice["prompt_token_ids"] == prompt
    expected = score(directory, prompt, output, temperature)
    return max(abs(a - b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("batch", [1, 3, 8])
async def test_ragged_batches(tiny: Tiny, score: Score, batch: int) -> None:
    directory = tiny(0)
    async with serving(directory, prefix_cache_bytes=0) as served:
        prompts = [ids(n, n) for n in (1, 700, 33, 2, 256, 90, 1200, 513)[:batch]]
        lengths = [5, 40, 12, 30, 1, 25, 8, 33]
        temperatures = [1.0, 0.7, 2.0, 0.0, 1.0, 0.3, 1.0, 1.5]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(served.ask(p, max_tokens=n, temperature=t, ignore_eos=True))
                for p, n, t in zip(prompts, lengths, temperatures, strict=False)
            ]
    for prompt, task, length, temperature in zip(prompts, tasks, lengths, temperatures, strict=False):
        assert len(task.result()["token_ids"]) == length
        assert check(directory, prompt, task.result(), score, temperature or 1.0) < TOLERANCE


async def test_turns_extend_their_own_kv(tiny: Tiny, score: Score) -> None:
    directory = tiny(1)
    async with serving(directory) as served:
        prompt = ids(300, 1)
        for turn in range(4):
            choice = await served.ask(prompt, max_tokens=30, ignore_eos=True)
            assert check(directory, prompt, choice, score) < TOLERANCE
            cached = choice["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached == (len(prompt) - 16 if turn else 0), "all of the last turn but the id that was not fed"
            prompt = prompt + choice["token_ids"] + ids(15, turn)


async def test_sessions_that_start_together_read_their_prompt_once(tiny: Tiny, score: Score) -> None:
    directory = tiny(0)
    shared = ids(900, 3)
    prompts = [shared + ids(20 + n, n) for n in range(6)]
    async with serving(directory, slots=4) as served, asyncio.TaskGroup() as group:
        tasks = [group.create_task(served.ask(p, max_tokens=20, ignore_eos=True)) for p in prompts]
    cached = sorted(t.result()["usage"]["prompt_tokens_details"]["cached_tokens"] for t in tasks)
    assert cached == [0] + [900] * 5
    assert max(check(directory, p, t.result(), score) for p, t in zip(prompts, tasks, strict=True)) < TOLERANCE


async def test_a_branch_keeps_what_it_left(tiny: Tiny, score: Score) -> None:
    """A prompt that leaves an idle row early copies the prefix, so the long row is still there for its own session."""
    directory = tiny(1)
    trunk = ids(400, 5)
    async with serving(directory) as served:
        await served.ask(trunk + ids(300, 6), max_tokens=1)
        branch = await served.ask(trunk + ids(50, 7), max_tokens=10, ignore_eos=True)
        again = await served.ask(trunk + ids(300, 6) + [9], max_tokens=10, ignore_eos=True)
    assert branch["usage"]["prompt_tokens_details"]["cached_tokens"] == 400
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 700
    assert check(directory, trunk + ids(50, 7), branch, score) < TOLERANCE
    assert check(directory, trunk + ids(300, 6) + [9], again, score) < TOLERANCE


async def test_the_cache_is_bounded(tiny: Tiny) -> None:
    limit = 1 << 20
    async with serving(tiny(0), prefix_cache_bytes=limit) as served:
        for n in range(4):
            await served.ask(ids(500, n), max_tokens=1)
            await asyncio.wrap_future(served.server.scheduler.order(lambda: None))
            assert sum(row.nbytes for row in served.server.scheduler.rows.idle) <= limit
        assert served.server.scheduler.rows.idle


async def test_the_same_seed_draws_the_same_ids_in_any_company(tiny: Tiny) -> None:
    async with serving(tiny(0)) as served:
        prompt = ids(40, 1)
        alone = await served.ask(prompt, max_tokens=30, seed=7, ignore_eos=True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(served.ask(prompt, max_tokens=30, seed=s, ignore_eos=True)) for s in (5, 6, 7)]
        assert tasks[2].result()["token_ids"] == alone["token_ids"] != tasks[0].result()["token_ids"]


async def test_smollm2_itself(smollm2: Path, score: Score) -> None:
    question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    asked = question | {"logprobs": True, "return_token_ids": True}
    async with serving(smollm2) as served, asyncio.TaskGroup() as group:
        greedy = group.create_task(served.post("/v1/chat/completions", asked | {"temperature": 0}))
        rest = [
            group.create_task(served.post("/v1/chat/completions", asked | {"temperature": t, "max_tokens": 24}))
            for t in (1.0, 0.7, 1.3)
        ]
    for task, temperature in zip([greedy, *rest], (1.0, 1.0, 0.7, 1.3), strict=True):
        _, body = task.result()
        choice = body["choices"][0]
        found = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert len(found) == len(choice["token_ids"]) == body["usage"]["completion_tokens"]
        expected = score(smollm2, body["prompt_token_ids"], choice["token_ids"], temperature)
        assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < TOLERANCE
    answer = greedy.result()[1]["choices"][0]
    assert answer["message"]["content"] == "The capital of France is Paris."
    assert (answer["token_ids"][-1], answer["finish_reason"]) == (2, "stop"), "the end token is among the ids"
