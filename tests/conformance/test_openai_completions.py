"""The official OpenAI SDK's raw completions through the proxy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import Serving, calls, serving


@asynccontextmanager
async def sdk(s: Serving) -> AsyncIterator[AsyncOpenAI]:
    ticket = await s.control.open_session()
    async with AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=0) as client:
        yield client


async def test_whole_and_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(*[Turn("Hello there, you.")] * 3)
        whole = await client.completions.create(model="policy", prompt="say it")
        (choice,) = whole.choices
        assert (choice.text, choice.finish_reason, choice.logprobs) == ("Hello there, you.", "stop", None)
        assert whole.usage is not None
        assert whole.usage.completion_tokens == len(s.engine.served[0].output_ids)
        stream = await client.completions.create(model="policy", prompt="say it", stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello there, you."
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        assert all(chunk.usage is None for chunk in chunks)
        counted = await client.completions.create(
            model="policy", prompt=[3, 4], stream=True, logprobs=1, stream_options={"include_usage": True}
        )
        kept = [chunk async for chunk in counted]
        assert kept[-1].usage is not None
        assert kept[-1].usage.prompt_tokens == 2
        assert kept[0].choices[0].logprobs is not None
        assert kept[0].choices[0].logprobs.token_logprobs == s.engine.served[2].log_probs[:1]
    rows = calls(s.data)
    assert [(row.dialect, row.trainable, row.status) for row in rows] == [("completions", True, "ok")] * 3
    for row, served in zip(rows, s.engine.served, strict=True):
        assert (list(row.prompt_ids), list(row.output_ids)) == (served.prompt_ids, served.output_ids)
        assert list(row.output_log_probs) == served.log_probs


async def test_errors_are_the_sdks_own(tmp_path: Path) -> None:
    async with serving(tmp_path, ScriptedEngine(max_model_len=20)) as s, sdk(s) as client:
        s.engine.script(Turn(fault=Fault(status=400)), Turn(fault=Fault(status=500)))
        with pytest.raises(openai.BadRequestError, match="scripted 400"):
            await client.completions.create(model="policy", prompt="hi")
        with pytest.raises(openai.InternalServerError, match="scripted 500"):
            await client.completions.create(model="policy", prompt="hi", stream=True)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 20 tokens"):
            await client.completions.create(model="policy", prompt="one " * 30)
    assert [row.status for row in calls(s.data)] == ["error"] * 3


async def test_a_prompt_of_ids_that_goes_on_is_one_trajectory(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("four five"), Turn("six"))
        first = await client.completions.create(
            model="policy", prompt="one two three", extra_body={"return_token_ids": True}
        )
        (choice,) = first.choices
        said = [*choice.prompt_token_ids, *choice.token_ids]  # type: ignore[attr-defined]
        await client.completions.create(model="policy", prompt=[*said, 0, 1])
    earlier, later = calls(s.data)
    assert [*earlier.prompt_ids, *earlier.output_ids] == said == list(later.prompt_ids[: len(said)])
    assert (earlier.trainable, later.trainable) == (True, True)
