"""A limit of output tokens that does not fit beside the prompt: taken out, recorded, and not asked for again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.serving import USER, WAIT_S, Serving, calls, serving

TOGETHER = (
    "This model's maximum context length is 4096 tokens. However, you requested 4000 output tokens and your prompt "
    "contains at least 97 input tokens, for a total of at least 4097 tokens. Please reduce the length of the input "
    "prompt or the number of requested output tokens."
)
ALONE = (
    "This model's maximum context length is 4096 tokens. However, your prompt contains at least 4097 input tokens, "
    "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
)


def refused(message: str) -> Turn:
    body = json.dumps({"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}})
    return Turn(fault=Fault(status=400, body=body))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_it_is_taken_out_and_the_row_says_so(tmp_path: Path, stream: bool) -> None:
    """Harnesses ask for 32,000 tokens and more (Claude Code, Hermes) of whatever context there is."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        s.engine.script(refused(TOGETHER), Turn("fits"), Turn("fits again"))
        for _ in range(2):
            async with s.chat(key=ticket.api_key, base=ticket.base_url, stream=stream, max_tokens=4000) as answer:
                assert answer.status == 200
                assert "fits" in await answer.text()
        sent = [served.json.get("max_tokens") for served in s.engine.served]
    first, second = calls(s.data)
    assert sent == [4000, None, None], "what does not fit once does not fit beside a longer prompt"
    edit = {"edit": "max_tokens", "asked": 4000, "sent": None}
    assert [attempt["status"] for attempt in json.loads(first.attempts or "[]")] == [400, 200]
    for row in (first, second):
        assert row.trainable
        assert json.loads(row.edits or "[]") == [edit]
        assert "max_tokens" in json.loads(row.sampling_asked or "{}")
        assert "max_tokens" not in json.loads(row.sampling_sent or "{}")


async def test_a_prompt_that_is_too_long_alone_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(refused(TOGETHER), refused(ALONE))
        async with s.chat(max_tokens=4000) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"] == ALONE
    (row,) = calls(s.data)
    assert (row.status, row.http_status) == ("error", 400)


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 5}])
async def test_another_refusal_is_asked_once(tmp_path: Path, limit: dict[str, int]) -> None:
    async with serving(tmp_path) as s:
        s.engine.script(refused("tools are off") if limit else refused(ALONE))
        async with s.chat([USER], **limit) as answer:
            assert answer.status == 400
        assert len(s.engine.served) == 1
    (row,) = calls(s.data)
    assert row.edits is None


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_raw_completions_limit_is_never_taken_out(tmp_path: Path, stream: bool) -> None:
    """Without one its engine would give 16 tokens: the refusal is the harness's to read, whatever chat has met."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        body = {"model": "policy", "prompt": "once", "max_tokens": 4000, "stream": stream}
        s.engine.script(refused(TOGETHER))
        async with s.http.post(f"{ticket.base_url}/completions", json=body, headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["message"] == TOGETHER
        s.engine.script(refused(TOGETHER), Turn("fits"), Turn("so be it"))
        async with s.chat(key=ticket.api_key, base=ticket.base_url, max_tokens=4000) as answer:
            assert answer.status == 200
        async with s.http.post(f"{ticket.base_url}/completions", json=body, headers=headers) as answer:
            assert answer.status == 200
        assert [served.json.get("max_tokens") for served in s.engine.served] == [4000, 4000, None, 4000]


class Hesitant(ScriptedEngine):
    """Refuses, and never comes to the end of saying why."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing = asyncio.Event()
        self.left = asyncio.Event()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = json.loads(await request.read())
        if asked.get("max_tokens") != 4000:
            return await super()._generate(request)
        response = web.StreamResponse(status=400, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"error":')
        self.refusing.set()
        await self.left.wait()
        return response


async def test_a_client_that_leaves_while_a_refusal_is_read_leaves_nothing_in_flight(tmp_path: Path) -> None:
    """A publication waits for the calls of a replica: one that is counted for ever would hold it up."""
    engine = Hesitant()
    async with serving(tmp_path, engine) as s, asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        asking = group.create_task(_status(s))
        await engine.refusing.wait()
        (replica,) = s.proxy.deps.pool.all()
        assert replica.in_flight == 1
        asking.cancel()
        await s.closed()
        await replica.idle.wait()
        assert replica.in_flight == 0
        engine.left.set()
    assert [row.status for row in calls(s.data)] == ["aborted"]


async def _status(s: Serving) -> int:
    async with s.chat(max_tokens=4000) as answer:
        return int(answer.status)
