"""A limit of output tokens that does not fit beside the prompt: taken out, recorded, and not asked for again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine import Fault, Turn
from tests.proxy.serving import USER, calls, serving

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
