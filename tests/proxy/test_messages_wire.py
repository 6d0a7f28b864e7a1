"""The messages wire over real sockets: keepalives, routes, a session's end, and what is recorded of a call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine import Turn
from tests.proxy.serving import QUICK, calls, events, serving

BODY: dict[str, Any] = {"model": "claude", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}


async def test_pings_keep_a_waiting_client_and_begin_with_the_engines_answer(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=replace(QUICK, keepalive_s=0.02)) as s:
        s.engine.gate.shut()
        s.engine.script(Turn("Hello"))
        s.engine.gate.release(2)
        async with s.http.post(s.proxy.base_url + "/messages?beta=true", json=BODY | {"stream": True}) as answer:
            kinds: list[str] = []
            while kinds[-2:] != ["ping", "ping"]:
                kinds.append(json.loads((await answer.content.readuntil(b"\n\n")).split(b"data: ")[1])["type"])
            s.engine.gate.open()
            rest = [event["type"] for event in events(await answer.read())]
    assert "message_start" in kinds
    assert rest[-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages?beta=true", "/v1/v1/messages"])
async def test_every_way_to_write_the_path(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        base = s.proxy.deps.base_url
        for prefix in ("", f"/s/{ticket.session_id}"):
            headers = {"x-api-key": ticket.api_key}
            async with s.http.post(base + prefix + path, json=BODY, headers=headers) as answer:
                assert (answer.status, (await answer.json())["type"]) == (200, "message")
        async with s.http.post(base + "/v1/messages/batches", json={}) as answer:
            said = await answer.json()
            assert (answer.status, said["error"]["type"]) == (404, "not_found_error")


async def test_a_used_up_budget_is_an_ordinary_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(budgets={"calls": 1})
        headers, url = {"x-api-key": ticket.api_key}, s.proxy.base_url + "/messages"
        async with s.http.post(url, json=BODY, headers=headers) as answer:
            assert (await answer.json())["stop_reason"] == "end_turn"
        async with s.http.post(url, json=BODY, headers=headers) as answer:
            whole = await answer.json()
        async with s.http.post(url, json=BODY | {"stream": True}, headers=headers) as answer:
            streamed = events(await answer.read())
        assert whole["stop_reason"] == "end_turn"
        assert "budget" in whole["content"][0]["text"]
        assert streamed[-2]["delta"]["stop_reason"] == "end_turn"
    assert len(calls(s.data)) == 1


async def test_what_is_recorded_of_a_call(tmp_path: Path) -> None:
    user = json.dumps({"session_id": "their-own"})
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    used = {"type": "tool_use", "id": "a", "name": "run", "input": {}}
    history = [
        *BODY["messages"],
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [image]}]},
    ]
    body = BODY | {"messages": history, "metadata": {"user_id": user}, "stream": True}
    headers = {"User-Agent": "claude-cli/2.1.332 (external, sdk-cli)", "anthropic-beta": "a,b"}
    async with serving(tmp_path) as s:
        s.engine.script(Turn("Done", reasoning="I see"))
        async with s.http.post(s.proxy.base_url + "/messages", json=body, headers=headers) as answer:
            await answer.read()
    (row,) = calls(s.data)
    assert (row.dialect, row.harness, row.harness_version) == ("messages", "claude-code", "2.1.332")
    assert (row.model_requested, row.trainable, row.error) == ("claude", True, None)
    edits = json.loads(row.edits or "[]")
    assert {"edit": "moved_image", "call_id": "a", "count": 1} in edits
    assert {"edit": "model", "asked": "claude", "sent": "policy"} in edits
    assert row.output_ids.tolist() == s.engine.served[0].output_ids
