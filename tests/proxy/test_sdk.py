"""The official OpenAI SDK through the proxy: what most harnesses are built on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam

from tests.engine import Fault, Turn
from tests.proxy.serving import Serving, calls, serving

TOOL: FunctionToolParam = {
    "type": "function",
    "name": "run",
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
    "strict": False,
}


@asynccontextmanager
async def sdk(s: Serving, *, retries: int = 0) -> AsyncIterator[AsyncOpenAI]:
    ticket = await s.control.open_session()
    async with AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=retries) as client:
        yield client


async def test_chat_whole(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Hello there", tool_calls=[("run", '{"cmd": "ls"}')]))
        answer = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        (choice,) = answer.choices
        assert (choice.message.content, choice.finish_reason) == ("Hello there", "tool_calls")
        assert [c.function.arguments for c in choice.message.tool_calls or []] == ['{"cmd": "ls"}']  # type: ignore[union-attr]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(s.engine.served[0].output_ids)


async def test_chat_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(Turn("Hello there", tool_calls=[("run", '{"cmd": "ls"}')]))
        async with client.chat.completions.stream(
            model="policy", messages=[{"role": "user", "content": "hi"}], stream_options={"include_usage": True}
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello there"
        assert final.choices[0].finish_reason == "tool_calls"
        assert final.usage is not None
    (row,) = calls(s.data)
    assert row.trainable


async def test_responses_stream_and_whole(tmp_path: Path) -> None:
    """Field case 27: a client of responses on a server of chat."""
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(*[Turn("Hello there", tool_calls=[("run", '{"cmd": "ls"}')])] * 2)
        async with client.responses.stream(model="policy", input="hi", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        whole = await client.responses.create(model="policy", input="hi", tools=[TOOL])
        assert kinds[0] == "response.created"
        assert kinds[-1] == "response.completed"
        assert "response.function_call_arguments.delta" in kinds
        for answer in (final, whole):
            assert answer.output_text == "Hello there"
            assert [o.arguments for o in answer.output if o.type == "function_call"] == ['{"cmd": "ls"}']
            assert answer.usage is not None
            assert answer.usage.output_tokens == len(s.engine.served[0].output_ids)
    rows = calls(s.data)
    assert [(r.dialect, r.trainable, r.request_raw is not None) for r in rows] == [("responses", True, True)] * 2


async def test_errors_are_the_sdks_own(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s) as client:
        s.engine.script(
            Turn(fault=Fault(status=400)), Turn(fault=Fault(status=500)), Turn("x", fault=Fault(no_finish=True))
        )
        hi = [{"role": "user", "content": "hi"}]
        with pytest.raises(openai.BadRequestError, match="scripted 400"):
            await client.chat.completions.create(model="policy", messages=hi)  # type: ignore[arg-type]
        with pytest.raises(openai.InternalServerError, match="scripted 500"):
            await client.responses.create(model="policy", input="hi")
        with pytest.raises(openai.APIError, match="broke off"):
            async for _ in await client.chat.completions.create(model="policy", messages=hi, stream=True):  # type: ignore[call-overload]
                pass
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="fs_wrong").responses.create(model="policy", input="hi")


async def test_its_own_retry_is_recognised(tmp_path: Path) -> None:
    async with serving(tmp_path) as s, sdk(s, retries=2) as client:
        s.engine.script(Turn(fault=Fault(status=500)), Turn("fine"))
        answer = await client.responses.create(model="policy", input="hi")
        assert answer.output_text == "fine"
    first, second = calls(s.data)
    assert (first.status, second.status, second.retry_of) == ("error", "ok", first.call_id)


async def test_a_closed_session_is_not_asked_again(tmp_path: Path) -> None:
    """The SDKs repeat a 409: each would be a late row of its own."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        await s.control.close_session(ticket.session_id, reward=1.0)
        async with AsyncOpenAI(base_url=ticket.base_url, api_key=ticket.api_key, max_retries=2) as client:
            with pytest.raises(openai.ConflictError):
                await client.responses.create(model="policy", input="hi")
    assert [row.status for row in calls(s.data)] == ["late"]
