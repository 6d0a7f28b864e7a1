"""The official OpenAI SDK for JavaScript, on which OpenCode, Qwen Code and OpenClaw are built, against three wires."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.node import OPENAI, run
from tests.engine import Fault, Turn
from tests.proxy.serving import calls, serving

pytestmark = pytest.mark.harness

FAILURES = {400: "BadRequestError", 404: "NotFoundError", 422: "UnprocessableEntityError", 500: "InternalServerError"}
PATCH = "*** Begin Patch\n+naïve 漢字\n*** End Patch"


async def test_streams_tools_histories_and_errors(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        tools = [("run", '{"cmd": "ls 漢字 🎉"}'), ("run", '{"cmd": "pwd"}')]
        patch = ("patch", '{"input": "*** Begin Patch\\n+naïve 漢字\\n*** End Patch"}')
        s.engine.script(
            Turn("On it", tool_calls=tools),
            Turn("Done"),
            Turn(tool_calls=[("run", '{"cmd": "ls"}')]),
            Turn("Looped"),
            Turn("Working", tool_calls=[tools[0], patch], reasoning="Two things"),
            Turn("Finished"),
            Turn(" a time"),
            *(Turn(fault=Fault(status=status)) for status in FAILURES),
            Turn("some words", fault=Fault(no_finish=True)),
            Turn("some words", fault=Fault(no_finish=True)),
        )
        said = await run(
            "openai.mjs", OPENAI, base_url=ticket.base_url, api_key=ticket.api_key, FAILURES=str(len(FAILURES))
        )
        served = s.engine.served
    first, second = said["first"], said["second"]
    assert ("".join(first["deltas"]), first["finish"], second["finish"]) == ("On it", "tool_calls", "stop")
    assert [c["function"]["arguments"] for c in first["message"]["tool_calls"]] == [arguments for _, arguments in tools]
    assert first["usage"]["completion_tokens"] == len(served[0].output_ids)
    assert [m["content"] for m in served[1].json["messages"][-2:]] == ["result of pwd", "result of ls 漢字 🎉"]
    assert (said["ran"], said["loop"]) == (["ls"], "Looped")
    _check_responses(said, served[4].prompt_ids + served[4].output_ids, served[5].prompt_ids)
    assert said["models"] == ["policy"]
    assert said["completion"]["choices"][0]["text"] == " a time"
    assert {f["status"]: f["name"] for f in said["failures"]} == FAILURES
    assert "broke off" in said["broken"]["text"]
    assert (said["failed"]["status"], "broke off" in said["failed"]["error"]["message"]) == ("failed", True)
    assert (said["denied"]["name"], said["denied"]["status"]) == ("AuthenticationError", 401)
    assert (said["stateful"]["status"], "previous_response_id" in said["stateful"]["text"]) == (400, True)
    assert len(calls(s.data)) == len(served)


def _check_responses(said: dict[str, object], before: list[int], prompt: list[int]) -> None:
    one, two = said["one"], said["two"]
    assert isinstance(one, dict)
    assert isinstance(two, dict)
    assert one["kinds"][0] == "response.created"
    assert one["kinds"][-1] == "response.completed"
    assert [item["type"] for item in one["output"]] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert one["output"][-1]["input"] == PATCH
    assert (one["text"], two["text"], two["status"]) == ("Working", "Finished", "completed")
    assert prompt[: len(before)] == before, "the second turn extends the first, id for id"
