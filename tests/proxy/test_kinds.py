"""Which call is for what: the words that real harnesses write, as small samples, each under the rule that names it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from forge.proxy.dialects.hints import chat_hints
from forge.proxy.sessions.attribution import signs
from forge.proxy.sessions.kinds import WORDINGS, Seen, Wording, kind_of, wordings_in
from forge.proxy.sessions.turns import split
from forge.proxy.splice import members

TOOL = {"type": "function", "function": {"name": "bash", "parameters": {}}}
LONG = "a line of the talk that is summed up\n" * 400


def kind(
    *texts: tuple[str, str], tools: int = 0, headers: dict[str, str] | None = None, by_content: str | None = None
) -> tuple[str, str]:
    """Of a chat request with these (role, text) messages."""
    messages = [{"role": role, "content": text} for role, text in texts]
    body = json.dumps({"messages": messages, "tools": [TOOL] * tools}).encode()
    found = CIMultiDict(headers or {})
    read = members(body)
    hints = chat_hints(read, split(bytes(read["messages"])))
    named, rule = kind_of(Seen(found, hints, signs(found, hints), by_content))
    return named.value, rule


SAMPLES: list[tuple[str, list[tuple[str, str]], int, str, str]] = [
    # Codex 0.163, a provider of one's own: one more user message, no tools. Field case 115.
    (
        "codex",
        [
            ("system", "You are Codex, based on GPT-5."),
            ("user", "fix it"),
            ("assistant", "done"),
            ("user", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM"),
        ],
        0,
        *("compaction", "codex-compact"),
    ),
    # Claude Code 2.1.332: the session's own tools and system prompt stay.
    (
        "claude-code",
        [
            ("system", "You are Claude Code, Anthropic's official CLI for Claude."),
            ("user", "fix it"),
            ("assistant", "done"),
            (
                "user",
                "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to create a detailed"
                " summary of the conversation so far, paying close attention to the user's explicit requests",
            ),
        ],
        12,
        *("compaction", "claude-code-compact"),
    ),
    # OpenCode 1.18.33: both side calls have no tools.
    (
        "opencode title",
        [
            ("system", "You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>"),
            ("user", "Generate a title for this conversation:\n"),
            ("user", '"create hello.txt"'),
        ],
        0,
        *("title", "opencode-title"),
    ),
    (
        "opencode compaction",
        [
            ("system", "You are a context summarization agent. You are given a conversation"),
            ("user", f"<conversation>{LONG}</conversation>\nCreate a new anchored summary from the conversation"),
        ],
        0,
        *("compaction", "opencode-compact"),
    ),
    # pi 1.6.0 and OpenClaw 2026.9.6: the instruction stands behind the talk.
    (
        "pi",
        [
            ("system", "You are a context summarization assistant. Your task is to read a conversation between a user"),
            ("user", f"<conversation>{LONG}\nCreate a structured context checkpoint summary that another LLM"),
        ],
        0,
        *("compaction", "pi-compact"),
    ),
    # Qwen Code 0.24.4: compaction without tools, the memory agents with some.
    (
        "qwen compaction",
        [
            ("system", "You are the component that summarizes a conversation when its context window is about to"),
            ("user", "First, reason in your <analysis> block. Then, produce the <state_snapshot> XML."),
        ],
        0,
        *("compaction", "qwen-compact"),
    ),
    (
        "qwen memory",
        [
            ("system", "You are now acting as the managed memory extraction subagent for an AI coding assistant."),
            ("user", "Analyze the recent messages"),
        ],
        6,
        *("memory", "qwen-memory"),
    ),
    # Hermes 0.19.0.
    (
        "hermes compaction",
        [("user", f"You are a summarization agent creating a context checkpoint. Treat the\n{LONG}")],
        0,
        *("compaction", "hermes-compact"),
    ),
    (
        "hermes title",
        [
            ("system", "Generate a short, descriptive title (3-7 words) for a conversation that starts"),
            ("user", "User: fix it\n\nAssistant: done"),
        ],
        0,
        *("title", "hermes-title"),
    ),
    (
        "hermes subagent",
        [("system", "You are a focused subagent working on a specific delegated task. YOUR"), ("user", "look")],
        12,
        *("subagent", "called-subagent"),
    ),
    (
        "qwen subagent",
        [("system", "You are a general-purpose subagent working for a parent agent. Complete"), ("user", "look")],
        17,
        *("subagent", "called-subagent"),
    ),
    (
        "gemini-cli compaction",
        [
            ("system", "You are a specialized system component responsible for distilling chat history"),
            ("user", "First, reason in your scratchpad. Then, generate the <state_snapshot>."),
        ],
        0,
        *("compaction", "gemini-compact"),
    ),
    ("unknown title", [("system", "Generate a concise title for the chat."), ("user", "hi")], 0, "title", "text-title"),
    (
        "unknown compaction",
        [("user", "go"), ("assistant", "ok"), ("user", "Summarize our conversation so far")],
        0,
        *("compaction", "text-compaction"),
    ),
    ("main", [("system", "You are a coding agent."), ("user", "make a title generator in C")], 4, "main", "default"),
    ("a question", [("user", "Summarize this conversation")], 4, "main", "default"),
    ("mini-swe-agent", [("system", "You are a helpful assistant that can interact with a computer."), ("user", "x")], 1,
     "main", "default"),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "tools", "named", "rule"), [s[1:] for s in SAMPLES], ids=[s[0] for s in SAMPLES])
def test_side_calls_are_told_by_their_words(texts: list[tuple[str, str]], tools: int, named: str, rule: str) -> None:
    """Field case 115: side calls are labelled with the rule that said so."""
    assert kind(*texts, tools=tools) == (named, rule)


def test_openclaws_notes_behind_the_question_hide_nothing() -> None:
    state = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnow\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
    asked = "Your task is to create a detailed summary of the conversation so far"
    assert kind(("user", "go"), ("assistant", "ok"), ("user", asked), ("user", state))[0] == "compaction"
    assert kind(("user", asked), ("assistant", "a summary"), ("tool", "x"), ("user", state), tools=2)[0] == "main"


@pytest.mark.parametrize(
    ("headers", "tools", "by_content", "named", "rule"),
    [
        (
            {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})},
            0,
            None,
            "compaction",
            "codex-request-kind",
        ),
        ({"x-openai-subagent": "memory_consolidation"}, 2, None, "memory", "x-openai-subagent"),
        (
            {"x-codex-parent-thread-id": "a", "thread-id": "b", "x-openai-subagent": "collab_spawn"},
            *(4, None, "subagent", "agent-id"),
        ),
        ({"x-claude-code-agent-id": "ab12"}, 4, None, "subagent", "agent-id"),
        ({"x-session-id": "kid", "x-parent-session-id": "p"}, 4, None, "subagent", "agent-id"),
        ({}, 4, "content-1", "subagent", "other-system-and-tools"),
    ],
)
def test_headers_and_content_name_kinds(
    headers: dict[str, str], tools: int, by_content: str | None, named: str, rule: str
) -> None:
    assert kind(("user", "go"), tools=tools, headers=headers, by_content=by_content) == (named, rule)


@pytest.mark.parametrize("wording", WORDINGS, ids=lambda wording: wording.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_every_wording_is_found_by_its_signs(wording: Wording, data: st.DataObject) -> None:
    text = data.draw(st.from_regex(wording.text))
    assert WORDINGS.index(wording) in wordings_in(text)
