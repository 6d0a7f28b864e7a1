"""What harnesses say on the wire, read right; and fingerprints of histories that never fail on any body."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from forge.proxy.sessions.attribution import signs, stored
from forge.proxy.sessions.history import History, Shared, fingerprint
from forge.proxy.sessions.kinds import Seen, kind_of

TURN = {"session_id": "s", "thread_id": "t2", "request_kind": "turn"}


@pytest.mark.parametrize(
    ("headers", "hints", "harness", "version", "external", "rule", "agent"),
    [
        (
            {"User-Agent": "codex_cli_rs/0.171.0", "session-id": "a"},
            {},
            "codex",
            "0.171.0",
            "a",
            "header",
            None,
        ),
        ({"session_id": "a"}, {}, None, None, "a", "header", None),
        (
            {"User-Agent": "codex_exec/0.163.0", "session-id": "a", "thread-id": "b", "x-codex-parent-thread-id": "a"},
            {},
            *("codex", "0.163.0", "a", "header", "b"),
        ),
        ({"x-codex-turn-metadata": json.dumps(TURN), "session-id": "s"}, {}, "codex", None, "s", "header", None),
        (
            {"User-Agent": "claude-cli/2.1.332 (external, cli)", "X-Claude-Code-Session-Id": "c"},
            {},
            *("claude-code", "2.1.332", "c", "header", None),
        ),
        (
            {"X-Claude-Code-Session-Id": "c", "x-claude-code-agent-id": "d"},
            {},
            *("claude-code", None, "c", "header", "d"),
        ),
        ({}, {"metadata": {"user_id": '{"session_id": "c"}'}}, None, None, "c", "body", None),
        ({"User-Agent": "opencode/1.18.33", "x-session-id": "o"}, {}, "opencode", "1.18.33", "o", "header", None),
        (
            {"User-Agent": "opencode/1.18.33", "x-session-id": "kid", "x-parent-session-id": "o"},
            {},
            *("opencode", "1.18.33", "o", "header", "kid"),
        ),
        ({}, {"prompt_cache_key": "p"}, None, None, "p", "body", None),
        ({}, {"client_metadata": {"session_id": "m"}, "prompt_cache_key": "p"}, None, None, "m", "body", None),
        (
            {},
            {"first_user": "Runtime: agent=main | sessionId=0f1e2d3c-aaaa-bbbb-cccc-000000000000 | x"},
            *("openclaw", None, "0f1e2d3c-aaaa-bbbb-cccc-000000000000", "body", None),
        ),
        ({"User-Agent": "GeminiCLI-tui/0.61.0/m (linux; x64)"}, {}, "gemini-cli", "0.61.0", None, "body", None),
        ({"User-Agent": "OpenAI/JS 5.1"}, {}, None, None, None, "body", None),
        ({"session-id": "x" * 300}, {}, None, None, None, "header", None),
    ],
)
def test_signs(
    headers: dict[str, str],
    hints: dict[str, Any],
    harness: str | None,
    version: str | None,
    external: str | None,
    rule: str,
    agent: str | None,
) -> None:
    found = signs(CIMultiDict(headers), hints)
    assert (found.harness, found.harness_version, found.external_id, found.rule, found.agent_id) == (
        *(harness, version, external, rule, agent),
    )


def test_only_listed_headers_are_stored() -> None:
    secret = {"Authorization": "Bearer k", "Cookie": "c", "x-api-key": "k", "X-Goog-Api-Key": "k", "X-Anything": "v"}
    kept = {"User-Agent": "codex_exec/1", "Session-Id": "s", "traceparent": "t"}
    assert stored(CIMultiDict(secret | kept)) == {"user-agent": "codex_exec/1", "session-id": "s", "traceparent": "t"}


@pytest.mark.parametrize(
    ("headers", "hints", "kind"),
    [
        ({}, {"tools": 4}, "main"),
        ({"x-codex-turn-metadata": '{"request_kind": "compaction"}'}, {"tools": 0}, "compaction"),
        ({"x-openai-subagent": "compact"}, {}, "compaction"),
        ({"x-openai-subagent": "memory_consolidation"}, {}, "memory"),
        ({"x-openai-subagent": "collab_spawn"}, {"tools": 4}, "subagent"),
        ({"x-claude-code-agent-id": "a"}, {"tools": 4}, "subagent"),
        ({}, {"tools": 0, "first_system": "You are a title generator. You output only a thread title."}, "title"),
        ({}, {"tools": 4, "first_system": "You are a title generator."}, "main"),
        ({}, {"tools": 0, "last_user": "Create a detailed summary of our conversation above"}, "compaction"),
        ({}, {"tools": 4, "last_user": "Summarize this conversation"}, "main"),
    ],
)
def test_kinds(headers: dict[str, str], hints: dict[str, Any], kind: str) -> None:
    found = CIMultiDict(headers)
    assert kind_of(Seen(found, hints, signs(found, hints)))[0] == kind


def body(*texts: str, **members: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text} for text in texts]} | members).encode()


def test_what_may_differ_in_a_retry_and_what_not() -> None:
    one = fingerprint(body("a", model="m", stream=True))
    assert one is not None
    assert fingerprint(body("a", model="m", stream=False, client_metadata={"turn": 2})) == one
    other = fingerprint(body("a", model="m", tools=[1]))
    assert other is not None
    assert other.whole != one.whole
    assert other.prefixes == one.prefixes


@given(st.lists(st.text(max_size=5), min_size=1, max_size=6))
def test_a_history_is_found_by_its_longest_prefix(texts: list[str]) -> None:
    shared = Shared()
    for size in range(1, len(texts) + 1):
        seen = fingerprint(body(*texts[:size]))
        assert seen is not None
        shared.note(seen, f"s{size}")
    longer = fingerprint(body(*texts, "and more"))
    assert longer is not None
    assert shared.session_of(longer) == f"s{len(texts)}"
    stranger = fingerprint(body("no", *texts))
    assert stranger is not None
    assert shared.session_of(stranger) in (None, *[f"s{n}" for n in range(len(texts) + 1)])


@given(st.binary(max_size=200) | st.text().map(lambda t: json.dumps({"messages": t, "input": t}).encode()))
def test_no_body_breaks_it(raw: bytes) -> None:
    seen = fingerprint(raw)
    if seen is not None:
        assert History().repeated(seen) is None


def test_deep_json_does_not_break_it() -> None:
    deep = b'{"messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert fingerprint(deep) is None
