"""Who may call: keys, paths, implicit sessions, closed sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forge.proxy.door.keys import Keys
from forge.proxy.sessions.spec import Budgets
from forge.storage.frames import Open
from tests.engine import Turn
from tests.proxy.serving import USER, Serving, calls, events, serving

CALL = {"model": "policy", "messages": [USER]}


async def post(s: Serving, url: str, headers: dict[str, str]) -> tuple[int, Any]:
    async with s.http.post(url + "/chat/completions", json=CALL, headers=headers) as answer:
        return answer.status, await answer.json()


def test_a_key_opens_its_session_only_and_survives_a_restart(tmp_path: Path) -> None:
    keys = Keys.of(tmp_path)
    key = keys.make("abcdefghijkl")
    assert key.startswith("fs_abcdefghijkl_")
    assert Keys.of(tmp_path).session_of(key) == "abcdefghijkl"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    mac = key.rpartition("_")[2]
    for bad in (f"fs_abcdefghijkm_{mac}", key[:-1], key + "0", key.upper(), "fs__", "fs_abcdefghijkl", "", "x" + key):
        assert keys.session_of(bad) is None, bad
    assert Keys(b"another secret of thirty-two bytes").session_of(key) is None
    assert keys.session_id_for("one") == Keys.of(tmp_path).session_id_for("one") != keys.session_id_for("two")


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "api-key", "x-goog-api-key"])
async def test_a_key_is_found_wherever_the_client_puts_it(tmp_path: Path, header: str) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        value = f"Bearer {ticket.api_key}" if header == "Authorization" else ticket.api_key
        for base in (ticket.base_url, ticket.base_url.removesuffix("/v1"), s.proxy.base_url):
            assert (await post(s, base, {header: value}))[0] == 200
        assert {(o.session_id, o.attribution) for o in s.frames(Open)} == {(ticket.session_id, "key")}


async def test_bad_keys_are_401_and_never_echoed(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        one, two = await s.control.open_session(), await s.control.open_session()
        forged = one.api_key[:-4] + "0000"
        for base, key in [
            (s.proxy.base_url, forged),
            (s.proxy.base_url, "fs_nonsense"),
            (one.base_url, two.api_key),
            (one.base_url, "sk-foreign"),
            (one.base_url, ""),
        ]:
            status, body = await post(s, base, {"Authorization": f"Bearer {key}"})
            assert status == 401, (base, key)
            assert body["error"]["code"] in ("key_invalid", "key_mismatch", "key_missing")
            assert not key or key not in str(body)
        assert not s.frames(Open)
        assert not s.engine.served


async def test_without_implicit_sessions_a_key_is_needed(tmp_path: Path) -> None:
    async with serving(tmp_path, implicit=False) as s:
        assert (await post(s, s.proxy.base_url, {}))[0] == 401
        assert (await post(s, s.proxy.base_url, {"Authorization": "Bearer sk-anything"}))[0] == 401


async def test_implicit_sessions_are_told_apart_by_what_harnesses_say(tmp_path: Path) -> None:
    """One session per id of the harness; without any id, per conversation."""
    talk = [USER, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    async with serving(tmp_path) as s:
        codex = {"User-Agent": "codex_exec/0.163.0 (Linux)", "session-id": "cx-1", "thread-id": "th-1"}
        agent = codex | {"thread-id": "th-2", "x-codex-parent-thread-id": "th-1", "x-openai-subagent": "collab_spawn"}
        for headers in (codex, codex, agent, codex | {"session-id": "cx-2"}):
            assert (await post(s, s.proxy.base_url, headers))[0] == 200
        for messages in ([USER], talk, [*talk, {"role": "assistant", "content": "ok"}, USER]):
            async with s.chat(messages) as answer:
                await answer.read()
        async with s.chat([{"role": "user", "content": "another one"}]) as answer:
            await answer.read()
        opens = s.frames(Open)
        sessions = [o.session_id for o in opens]
        assert sessions[0] == sessions[1] == sessions[2] != sessions[3]
        assert (opens[2].agent_id, opens[2].kind, opens[0].kind) == ("th-2", "subagent", "main")
        assert (opens[0].harness, opens[0].harness_version) == ("codex", "0.163.0")
        assert sessions[4] == sessions[5] == sessions[6] != sessions[7]
        assert [o.attribution for o in opens] == ["header"] * 4 + ["implicit", "prefix", "prefix", "implicit"]
    assert len({c.session_id for c in calls(s.data)}) == 4


async def test_the_same_task_run_again_is_another_session(tmp_path: Path) -> None:
    """Without any id: what begins as a conversation did that went on since is none of it; a retry of the opening is."""
    ok = {"role": "assistant", "content": "ok"}
    async with serving(tmp_path) as s:
        for messages in ([USER], [USER], [USER, ok, USER], [USER], [USER, ok, USER], [USER, ok, USER]):
            async with s.chat(messages) as answer:
                await answer.read()
        opens = s.frames(Open)
    first, second = opens[0].session_id, opens[3].session_id
    assert first != second
    assert [o.session_id for o in opens] == [first] * 3 + [second] * 3
    assert [o.retry_of for o in opens] == [None, opens[0].call_id, None, None, None, opens[4].call_id]


async def test_two_subagents_that_ask_the_same_are_no_retries_of_each_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        for agent in ("a", "b", "b"):
            headers = {"x-claude-code-session-id": "c", "x-claude-code-agent-id": agent}
            assert (await post(s, s.proxy.base_url, headers))[0] == 200
        opens = s.frames(Open)
    assert [o.retry_of for o in opens] == [None, None, opens[1].call_id]


async def test_a_closed_session_is_409_and_a_late_row(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        assert (await post(s, ticket.base_url, headers))[0] == 200
        await s.control.close_session(ticket.session_id, reward=None)
        status, body = await post(s, ticket.base_url, headers)
        assert (status, body["error"]["code"]) == (409, "session_closed")
        assert len(s.engine.served) == 1
    ok, late = calls(s.data)
    assert (ok.status, late.status, late.http_status) == ("ok", "late", 409)
    assert (late.session_id, late.trainable) == (ticket.session_id, False)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("path", "prompt"), [("/chat/completions", {"messages": [USER]}), ("/completions", {"prompt": ["a", "b"]})]
)
async def test_a_used_up_budget_ends_every_choice(tmp_path: Path, path: str, prompt: Any, stream: bool) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(budgets={"calls": 0})
        headers = {"Authorization": f"Bearer {ticket.api_key}"}
        body = {"model": "policy", "n": 2, "stream": stream} | prompt
        async with s.http.post(ticket.base_url + path, json=body, headers=headers) as answer:
            said = await answer.text()
        found = events(said) if stream else [json.loads(said)]
        ended = [c["index"] for event in found for c in event["choices"] if c["finish_reason"] == "stop"]
        assert ended == list(range(2 * len(prompt.get("prompt", "."))))
        assert "error" not in said


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
async def test_a_used_up_budget_is_a_clean_stop_and_no_row(tmp_path: Path, dialect: str, stream: bool) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(budgets={"calls": 1})
        path = "/chat/completions" if dialect == "chat" else "/responses"
        body = CALL if dialect == "chat" else {"model": "policy", "input": "hi"}
        texts = []
        for _ in range(2):
            headers = {"Authorization": f"Bearer {ticket.api_key}"}
            async with s.http.post(ticket.base_url + path, json=body | {"stream": stream}, headers=headers) as answer:
                assert answer.status == 200
                texts.append(await answer.text())
        assert "budget of calls" in texts[1]
        if dialect == "chat":
            finishes = events(texts[1]) if stream else [json.loads(texts[1])]
            assert any(c["finish_reason"] == "stop" for e in finishes for c in e["choices"])
        else:
            assert "completed" in texts[1]
        assert len(s.engine.served) == 1
    assert len(calls(s.data)) == 1


async def test_budgets_of_tokens_clamp_and_then_stop(tmp_path: Path) -> None:
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session(budgets={"output_tokens": 5})
        s.engine.default = lambda _: Turn("one two three four five six seven eight")
        for _ in range(2):
            async with s.chat(key=ticket.api_key, base=ticket.base_url, max_tokens=3) as answer:
                await answer.read()
        async with s.chat(key=ticket.api_key, base=ticket.base_url) as answer:
            assert "budget of output_tokens" in (await answer.text())
        assert [x.json["max_tokens"] for x in s.engine.served] == [3, 2]
    assert [len(c.output_ids) for c in calls(s.data)] == [3, 2]


async def test_a_retry_is_recognised_unless_its_answer_was_used(tmp_path: Path) -> None:
    talk = [USER, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
    async with serving(tmp_path) as s:
        ticket = await s.control.open_session()
        for messages, stream in ([USER], True), ([USER], False), (talk, True), ([USER], True), (talk, True):
            async with s.chat(messages, key=ticket.api_key, base=ticket.base_url, stream=stream) as answer:
                await answer.read()
        ids = [o.call_id for o in s.frames(Open)]
        assert [o.retry_of for o in s.frames(Open)] == [None, ids[0], None, None, ids[2]]


def test_budgets_name_every_field() -> None:
    assert set(Budgets.__struct_fields__) == {"calls", "output_tokens", "context", "seconds"}
