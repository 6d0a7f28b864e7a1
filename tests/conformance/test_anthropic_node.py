"""The official Anthropic SDK for JavaScript, on which Claude Code and pi are built, against the messages wire."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.node import ANTHROPIC, run
from tests.engine import Fault, Turn
from tests.proxy.serving import calls, serving

pytestmark = pytest.mark.harness

FAILURES = {
    400: ("BadRequestError", "invalid_request_error"),
    404: ("NotFoundError", "not_found_error"),
    429: ("RateLimitError", "rate_limit_error"),
    500: ("InternalServerError", "api_error"),
    529: ("OverloadedError", "overloaded_error"),
}


async def test_streams_tools_histories_counts_and_errors(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        tools = [("run", '{"cmd": "ls 漢字 🎉"}'), ("run", '{"cmd": "pwd"}')]
        s.engine.script(
            Turn("On it", tool_calls=tools, reasoning="Two things"),
            Turn("Done"),
            Turn("Whole", tool_calls=tools[:1]),
            Turn("Beta"),
            *(Turn(fault=Fault(status=status)) for status in FAILURES if status != 429),
            *[Turn(fault=Fault(status=429))] * 3,
            Turn("some words", fault=Fault(no_finish=True)),
        )
        said = await run(
            "anthropic.mjs",
            ANTHROPIC,
            base_url=ticket.base_url.removesuffix("/v1"),
            api_key=ticket.api_key,
            FAILURES=str(len(FAILURES)),
        )
    first, second = said["first"]["message"], said["second"]["message"]
    assert said["first"]["kinds"][0] == "message_start"
    assert said["first"]["kinds"][-2:] == ["message_delta", "message_stop"]
    assert [block["type"] for block in first["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["input"] for block in first["content"][2:]] == [{"cmd": "ls 漢字 🎉"}, {"cmd": "pwd"}]
    assert (first["stop_reason"], second["stop_reason"]) == ("tool_use", "end_turn")
    assert [block["text"] for block in second["content"]] == ["Done"]
    one, two = s.engine.served[:2]
    before = one.prompt_ids + one.output_ids
    assert two.prompt_ids[: len(before)] == before
    assert [message["content"] for message in two.json["messages"][-2:]] == ["result of ls 漢字 🎉", "result of pwd"]
    for message, served in ((first, one), (second, two), (said["whole"], s.engine.served[2])):
        assert message["usage"]["input_tokens"] == len(served.prompt_ids)
        assert message["usage"]["output_tokens"] == len(served.output_ids)
    assert said["whole"]["content"][1]["input"] == {"cmd": "ls 漢字 🎉"}
    assert said["counted"] == {"input_tokens": len(one.prompt_ids)}
    assert said["beta"]["content"][0]["text"] == "Beta"
    found = {failure["status"]: (failure["name"], failure["type"]) for failure in said["failures"]}
    assert found == FAILURES
    assert "broke off" in said["broken"]["text"]
    assert (said["denied"]["name"], said["denied"]["status"]) == ("AuthenticationError", 401)
    assert len(calls(s.data)) == 4 + len(FAILURES) + 1
