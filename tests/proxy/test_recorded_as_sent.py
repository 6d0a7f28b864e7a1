"""What a harness sends is recorded as it is: wrong model names, broken histories, every tool that it offered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.proxy.serving import USER, calls, serving

Json = dict[str, Any]


@pytest.mark.parametrize("path", ["/chat/completions", "/chat/completions/chat/completions"])
async def test_a_whole_endpoint_as_base_url_and_another_models_name(tmp_path: Path, path: str) -> None:
    """Field case 10: both are put right, and the row tells which model was asked for and which served."""
    async with serving(tmp_path) as s:
        body = {"model": "gpt-9", "messages": [USER]}
        async with s.http.post(s.proxy.base_url + path, json=body) as answer:
            assert answer.status == 200
            assert (await answer.json())["model"] == "gpt-9"
        (row,) = calls(s.data)
        assert (row.model_requested, row.model_served) == ("gpt-9", "policy")
        assert {"edit": "model", "asked": "gpt-9", "sent": "policy"} in json.loads(row.edits or "[]")


@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
async def test_a_row_tells_the_tools_that_were_sent_and_those_that_were_not(tmp_path: Path, wire: str) -> None:
    """Field case 89: a tool that never reaches the model shows in the row, not in bad behaviour."""
    schema: Json = {"type": "object", "properties": {}}
    async with serving(tmp_path) as s:
        if wire == "chat":
            tools = [{"type": "function", "function": {"name": f"t{n}", "parameters": schema}} for n in range(3)]
            path, body = "/chat/completions", {"messages": [USER], "tools": tools}
        elif wire == "responses":
            tools = [{"type": "function", "name": f"t{n}", "parameters": schema} for n in range(3)]
            path, body = "/responses", {"input": "hi", "tools": [*tools, {"type": "web_search"}]}
        else:
            tools = [{"name": f"t{n}", "input_schema": schema} for n in range(3)]
            path, body = "/messages", {"messages": [USER], "max_tokens": 9, "tools": tools}
        async with s.http.post(s.proxy.base_url + path, json={"model": "m"} | body) as answer:
            assert answer.status == 200, await answer.text()
        (row,) = calls(s.data)
        assert [tool["function"]["name"] for tool in json.loads(row.tools or "[]")] == ["t0", "t1", "t2"]
        assert json.loads(row.tools or "[]") == s.engine.served[0].json["tools"]
        dropped = [edit for edit in json.loads(row.edits or "[]") if edit.get("type") == "web_search"]
        assert len(dropped) == (wire == "responses")


async def test_a_broken_history_is_sent_and_recorded_as_it_is(tmp_path: Path) -> None:
    """Field cases 95, 99: a tool call without its result, arguments that are no JSON: nothing is mended in silence."""
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1'}}
    broken = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "user", "content": "on"}]
    async with serving(tmp_path) as s:
        async with s.chat(broken) as answer:
            assert answer.status == 200
            await answer.read()
        (row,) = calls(s.data)
        assert json.loads(row.messages) == s.engine.served[0].json["messages"] == broken


async def test_sampling_as_sent_holds_nothing_that_samples_nothing(tmp_path: Path) -> None:
    """What we ask for ourselves (ids, log probs) is no sampling; null where nobody names any."""
    async with serving(tmp_path) as s:
        for members in ({}, {"temperature": 0.5}, {"logprobs": True}):
            async with s.chat(**members) as answer:
                assert answer.status == 200
        assert all(served.json["logprobs"] for served in s.engine.served)
        rows = calls(s.data)
    assert [row.sampling_sent for row in rows] == [None, '{"temperature":0.5}', '{"logprobs":true}']
    assert [row.sampling_asked for row in rows] == [row.sampling_sent for row in rows]
