"""Log probs of prompt ids: of a fresh forward pass of the weights served, whatever KV lies about. Field case 135."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forge.policy import protocol
from forge.policy.protocol import Completion, Refused
from tests.policy.served import serving
from tests.policy.test_exactness import TOLERANCE, Score, ids

pytestmark = pytest.mark.model
Tiny = Callable[[int], Path]


@pytest.mark.parametrize("length", [1, 2, 128, 129, 400])
async def test_prompt_log_probs_are_those_of_a_fresh_pass(tiny: Tiny, score: Score, length: int) -> None:
    prompt = ids(length, length)
    async with serving(tiny(0)) as served:
        for _ in range(2):  # the second finds the first one's KV, and must not use it
            choice = await served.ask(prompt, max_tokens=2, ignore_eos=True, prompt_logprobs=1, temperature=0.5)
            assert choice["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            first, *rest = choice["prompt_logprobs"]
            assert first is None
            found = [entry[str(index)] for entry, index in zip(rest, prompt[1:], strict=True)]
            expected = score(tiny(0), prompt[:1], prompt[1:]) if length > 1 else []
            assert [f["logprob"] for f in found] == pytest.approx(expected, abs=TOLERANCE)
            for entry, own in zip(rest, found, strict=True):
                best = max(entry.values(), key=lambda each: each["logprob"])
                assert (best["rank"], len(entry)) == (1, 1 if own["rank"] == 1 else 2)


async def test_they_are_of_the_weights_served_after_a_reload_that_kept_old_kv(tiny: Tiny, score: Score) -> None:
    prompt = ids(200, 5)
    async with serving(tiny(0)) as served:
        await served.ask(prompt, max_tokens=1)
        kept = list(served.server.scheduler.rows.idle)
        await served.post("/pause")
        assert (await served.post("/reload_weights", {"path": str(tiny(2))}))[0] == 200
        served.server.scheduler.rows.idle.extend(kept)
        kept[0].ids[:] = prompt
        await served.post("/resume")
        choice = await served.ask(prompt, max_tokens=1, prompt_logprobs=0)
    found = [
        entry[str(index)]["logprob"] for entry, index in zip(choice["prompt_logprobs"][1:], prompt[1:], strict=True)
    ]
    assert found == pytest.approx(score(tiny(2), prompt[:1], prompt[1:]), abs=TOLERANCE)


async def test_tokens_by_their_ids(tiny: Tiny) -> None:
    async with serving(tiny(0)) as served:
        choice = await served.ask(ids(5, 1), max_tokens=3, logprobs=2, return_tokens_as_token_ids=True)
    assert choice["logprobs"]["tokens"] == [f"token_id:{index}" for index in choice["token_ids"]]
    assert all(name.startswith("token_id:") for top in choice["logprobs"]["top_logprobs"] for name in top)


def test_streams_give_none() -> None:
    with pytest.raises(Refused, match="prompt_logprobs"):
        protocol.check(protocol.parse(b'{"prompt": [1, 2], "prompt_logprobs": 0, "stream": true}', Completion))
