"""Whose call is it, through the real proxy: sub-agents of every harness, those that outlive it, and retries."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forge.storage.frames import Open
from forge.storage.trajectory import build
from tests.engine import Gate, Turn
from tests.proxy.serving import WAIT_S, Serving, calls, serving

Json = dict[str, Any]
MAIN = "You are a coding agent."
HELPER = "You are an expert in searching."


def tools(count: int) -> list[Json]:
    return [{"type": "function", "function": {"name": f"t{n}", "parameters": {}}} for n in range(count)]


def history(system: str, user: str, *more: str) -> list[Json]:
    """A system prompt, a user's text, then replies and results in turn."""
    roles = ("assistant", "user")
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        *({"role": roles[n % 2], "content": text} for n, text in enumerate(more)),
    ]


async def ask(s: Serving, messages: list[Json], *, headers: dict[str, str] | None = None, **members: Any) -> None:
    body = {"model": "m", "messages": messages} | members
    async with s.http.post(s.proxy.base_url + "/chat/completions", json=body, headers=headers or {}) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()


def who(s: Serving) -> list[tuple[str | None, str]]:
    return [(row.agent_id, row.kind) for row in calls(s.data)]


@pytest.mark.parametrize("count", [2, 6], ids=["fewer tools", "more tools"])
async def test_subagents_are_told_by_their_content(tmp_path: Path, count: int) -> None:
    """Qwen Code, Hermes and Gemini CLI: another system prompt, other tools, a history of its own; its id is the same
    all along. Field cases 167, 168."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(harness="qwen-code")
        headers = {"Authorization": f"Bearer {ticket.api_key}"}

        async def say(messages: list[Json], offered: int) -> None:
            await ask(s, messages, headers=headers, **({"tools": tools(offered)} if offered else {}))

        await say(history("You are a title generator. You output ONLY a thread title", "go"), 0)
        await say(history(MAIN, "go"), 4)
        await say(history(HELPER, "find it"), count)
        await say(history(MAIN, "go", "meanwhile", "on"), 4)
        await say(history(HELPER, "find it", "found", "more"), count)
        await say(history(HELPER, "find another"), count)
        await say(history(MAIN + " Now you plan.", "go", "ok", "and plan"), 3)
        # After a compaction: another beginning, and a note in the system prompt.
        await say(history(MAIN + " Now you plan. Turns were compacted.", "so far: all good", "fine", "go on"), 3)
        await say(history(MAIN + " Now you plan. Turns were compacted.", "so far: all is", "fine", "go on"), 5)
        rows = who(s)
        kinds = [kind for _, kind in rows]
        assert kinds == ["title", "main", "subagent", "main", "subagent", "subagent", "main", "main", "main"]
        ids = [agent for agent, _ in rows]
        assert ids[2] == ids[4] is not None
        assert ids[5] not in (None, ids[2])
        assert [agent for agent, kind in rows if kind != "subagent"] == [None] * 6


async def test_one_that_is_called_a_subagent_is_never_the_main_one(tmp_path: Path) -> None:
    """It comes first after a restart of the proxy, which has forgotten the main agent."""
    helper = "You are a general-purpose subagent working for a parent agent."
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(harness="qwen-code")
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        await ask(s, history(helper, "find it"), tools=tools(6), headers=headers)
        await ask(s, history(MAIN, "go"), tools=tools(4), headers=headers)
        await ask(s, history(helper, "find it", "found", "on"), tools=tools(6), headers=headers)
        rows = who(s)
        assert [kind for _, kind in rows] == ["subagent", "main", "subagent"]
        assert rows[0][0] == rows[2][0] is not None


async def test_a_harness_that_names_its_agents_is_believed(tmp_path: Path) -> None:
    """Claude Code's main agent stays main when it has fewer tools and another prompt (plan mode)."""
    async with serving(tmp_path) as s:
        ids = {"User-Agent": "claude-cli/2.1.332", "X-Claude-Code-Session-Id": "c"}
        await ask(s, history(MAIN, "go"), tools=tools(4), headers=ids)
        await ask(s, history("plan", "plan it"), tools=tools(2), headers=ids)
        await ask(s, history(HELPER, "look"), tools=tools(2), headers=ids | {"x-claude-code-agent-id": "ab"})
        assert who(s) == [(None, "main"), (None, "main"), ("ab", "subagent")]
        assert len({row.session_id for row in calls(s.data)}) == 1


async def test_subagents_named_by_headers_stay_in_their_session(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        codex = {"User-Agent": "codex_exec/0.171.0", "session-id": "x", "thread-id": "x"}
        child = codex | {"thread-id": "y", "x-codex-parent-thread-id": "x", "x-openai-subagent": "collab_spawn"}
        await ask(s, history(MAIN, "go"), tools=tools(4), headers=codex)
        await ask(s, history(MAIN, "look"), tools=tools(4), headers=child)
        await ask(
            s, history(MAIN, "go"), headers={"User-Agent": "opencode/1.18.33", "x-session-id": "o"}, tools=tools(3)
        )
        kid = {"User-Agent": "opencode/1.18.33", "x-session-id": "k", "x-parent-session-id": "o"}
        await ask(s, history(HELPER, "look"), headers=kid, tools=tools(3))
        rows = calls(s.data)
        assert [(row.agent_id, row.kind) for row in rows] == [
            *((None, "main"), ("y", "subagent"), (None, "main"), ("k", "subagent"))
        ]
        assert rows[0].session_id == rows[1].session_id != rows[2].session_id == rows[3].session_id


async def test_openclaws_subagents_share_their_parents_trace(tmp_path: Path) -> None:
    trace, other = (f"00-{n:032x}-00000000000000{n:02x}-01" for n in (7, 8))
    line = "\nRuntime: agent=main | session={session} | sessionId={id} | model=rec/m"
    parent = "go" + line.format(session="agent:main:main", id="11111111-aaaa")
    child = "look" + line.format(session="agent:main:subagent:33333333-bbbb", id="22222222-aaaa")
    async with serving(tmp_path) as s:
        await ask(s, history(MAIN, parent), headers={"traceparent": trace}, tools=tools(4))
        await ask(s, history(HELPER, child), headers={"traceparent": trace}, tools=tools(3))
        await ask(s, history("Tell what was done", parent), headers={"traceparent": other}, tools=tools(3))
        rows = calls(s.data)
        assert [(row.agent_id, row.kind) for row in rows] == [
            *((None, "main"), ("33333333-bbbb", "subagent"), (None, "main"))
        ]
        assert len({row.session_id for row in rows}) == 1
        assert {row.harness for row in rows} == {"openclaw"}


async def test_a_subagent_that_outlives_its_harness(tmp_path: Path) -> None:
    """Close waits for the call that runs; what the sub-agent asks afterwards is a late row. Field case 167."""
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(harness="claude-code")
        gate = Gate(is_open=False)
        s.engine.script(Turn("first"), Turn("slow", gate=gate))
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        agent = headers | {"x-claude-code-agent-id": "ab"}
        await ask(s, history(MAIN, "go"), headers=headers)
        running = asyncio.ensure_future(ask(s, history(HELPER, "look"), headers=agent))
        await asyncio.wait_for(gate.waiting.wait(), WAIT_S)
        closing = asyncio.ensure_future(s.control.close_session(ticket.session_id, reward=1.0, grace=30))
        async with asyncio.timeout(WAIT_S):
            while True:
                async with s.chat(history(HELPER, "look", "slow", "more"), key=ticket.api_key) as answer:
                    if answer.status == 409:
                        break
        gate.open()
        await running
        done = await closing
        assert done.calls.statuses["late"] >= 1
        ok = [row for row in calls(s.data) if row.status == "ok"]
        assert [row.agent_id for row in ok][:2] == [None, "ab"]


async def test_a_compaction_stays_in_its_session(tmp_path: Path) -> None:
    """Field cases 115, 168: its first turn is another, so no prefix finds it; the harness's own id does."""
    summary = "hello.txt was made and holds hi; nothing is left to do."
    asked = "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary"
    async with serving(tmp_path) as s:
        ids = {"User-Agent": "codex_exec/0.171.0", "session-id": "x"}
        s.engine.script(Turn("ok"), Turn(summary), Turn("done"))
        await ask(s, history(MAIN, "go"), tools=tools(4), headers=ids)
        await ask(s, history(MAIN, "go", "ok", asked), headers=ids)
        await ask(s, history(MAIN, f"Another model began. Its summary: {summary}"), tools=tools(4), headers=ids)
        rows = calls(s.data)
        assert [(row.kind, row.kind_rule) for row in rows] == [
            *(("main", "default"), ("compaction", "codex-compact"), ("main", "default"))
        ]
        assert len({row.session_id for row in rows}) == 1
        assert [node.placement.join_cause for node in build(rows).nodes][-1] == "compacted"


async def test_a_retry_is_linked_though_its_echo_changed(tmp_path: Path) -> None:
    """Field cases 120, 165: the same turn again, re-serialised, also the first one; the answer was never continued."""
    call = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1, "b": 2}'}}
    again = {"id": "call1", "type": "function", "function": {"name": "ls", "arguments": '{"b":2,"a":1}'}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
    async with serving(tmp_path) as s:
        ids = {"x-session-id": "s"}
        first = history(MAIN, "go")
        await ask(s, first, headers=ids)
        await ask(s, [first[0], first[1] | {"content": [{"type": "text", "text": "go "}]}], headers=ids, stream=True)
        second = [*first, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
        await ask(s, second, headers=ids)
        echoed = {"role": "assistant", "content": "", "tool_calls": [again], "reasoning_content": "hm"}
        await ask(s, [*first, echoed, result | {"tool_call_id": "call1"}], headers=ids)
        await ask(s, first, headers=ids)
        opened = s.frames(Open)
        names = [frame.call_id for frame in opened]
        assert [frame.retry_of for frame in opened] == [None, names[0], None, names[2], None]


async def test_parallel_equal_calls_are_no_retries_unless_the_client_says_so(tmp_path: Path) -> None:
    """Field case 120: the SDK's own count of tries tells a retry from a twin while the first still runs."""
    async with serving(tmp_path) as s:
        gate = Gate(is_open=False)
        s.engine.script(*[Turn("x", gate=gate)] * 3)
        ids = {"x-session-id": "s"}
        same = history(MAIN, "go")
        twins = [asyncio.ensure_future(ask(s, same, headers=ids)) for _ in range(2)]
        names = [frame.call_id for frame in await s.opened(2)]
        retry = asyncio.ensure_future(ask(s, same, headers=ids | {"x-stainless-retry-count": "1"}))
        opened = await s.opened(3)
        gate.open()
        await asyncio.gather(*twins, retry)
        assert [frame.retry_of for frame in opened] == [None, None, names[1]]
