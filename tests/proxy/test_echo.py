"""The normal form of histories: whatever a harness does to its echo, the same is the same, and another is another."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from forge.proxy.sessions import echo
from forge.proxy.sessions.history import Fingerprint, History, Shared, fingerprint
from tests.proxy.histories import CHANGES, FORMATS, HISTORIES, Json, rewritten, write

DICE = st.integers(0, 1 << 30).map(random.Random)


def printed(body: Json) -> Fingerprint:
    found = fingerprint(json.dumps(body).encode())
    assert found is not None
    return found


@given(HISTORIES, st.sampled_from(FORMATS), DICE)
def test_an_echo_keeps_its_identity(turns: list[Json], wire: str, dice: random.Random) -> None:
    """Field cases 99, 105: arguments re-serialised, ids shortened, cache marks, blanks, list or string, nonces."""
    body = write(turns, wire)
    assert printed(rewritten(body, dice)) == printed(body)


@given(HISTORIES, st.sampled_from(FORMATS), st.sampled_from(CHANGES), st.integers(0, 9), DICE)
def test_another_meaning_is_another_identity(
    turns: list[Json], wire: str, change: Any, at: int, dice: random.Random
) -> None:
    at %= len(turns)
    changed = change(turns[at])
    assume(changed is not None)
    other = [*turns[:at], changed, *turns[at + 1 :]]
    one, two = printed(write(turns, wire)), printed(rewritten(write(other, wire), dice))
    assert one.whole != two.whole
    assert one.prefixes[-1:] != two.prefixes[-1:]


@given(HISTORIES, st.sampled_from(FORMATS), st.integers(0, 9))
def test_a_dropped_turn_is_another_identity(turns: list[Json], wire: str, at: int) -> None:
    at %= len(turns)
    assume(turns[at].get("user") or turns[at].get("text") or turns[at].get("calls"))
    assert printed(write([*turns[:at], *turns[at + 1 :]], wire)).whole != printed(write(turns, wire)).whole


@given(HISTORIES, HISTORIES, st.sampled_from(FORMATS), DICE)
def test_a_rewritten_history_is_continued(turns: list[Json], more: list[Json], wire: str, dice: random.Random) -> None:
    """Field case 105: the session is found by longest prefix, and its retry known, however the echo was rewritten."""
    shared, history = Shared(), History()
    first = printed(write(turns, wire))
    shared.note(first, "s")
    assert history.repeated(first) is None
    history.note(first, "a")
    assert history.repeated(printed(rewritten(write(turns, wire), dice))) == "a"
    longer = printed(rewritten(write([*turns, *more], wire), dice))
    assume(len(longer.prefixes) > len(first.prefixes) > 0)
    assert shared.session_of(longer) == "s"
    history.note(longer, "c")
    assert history.repeated(first) is None, "its answer was continued: asking again is no retry"


def test_a_moved_state_message_is_no_turn() -> None:
    """OpenClaw in chat mode takes its state message out and puts it at the end of every request."""
    state = {
        "role": "user",
        "content": "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\nnow: 7\n<<<END_OPENCLAW_INTERNAL_CONTEXT>>>",
    }
    user, reply = {"role": "user", "content": "go"}, {"role": "assistant", "content": "ok"}
    shared = Shared()
    shared.note(printed({"messages": [user, state]}), "s")
    assert shared.session_of(printed({"messages": [user, reply, {"role": "user", "content": "on"}, state]})) == "s"


@pytest.mark.parametrize(
    "block",
    [
        "x-anthropic-billing-header: cc_version=2.1.332; cc_entrypoint=cli; cch=00000;",
        "x-anthropic-billing-header: cc_version=2.1.332; cc_is_subagent=true;\nYou are Claude Code.",
    ],
)
def test_a_nonce_in_the_system_prompt_is_pinned(block: str) -> None:
    """Field case 105: another one in every session, alone in a block or before the prompt."""
    plain = block.partition("\n")[2]
    with_nonce = {"system": [{"type": "text", "text": block}], "messages": [{"role": "user", "content": "x"}]}
    without = {"system": [{"type": "text", "text": plain}], "messages": [{"role": "user", "content": "x"}]}
    assert printed(with_nonce) == printed(without)


def test_text_prompts_continue_by_lines() -> None:
    shared = Shared()
    one, two = (printed({"prompt": f"User: a\nAssistant:{rest}"}) for rest in ("", " hi"))
    assert one.whole != two.whole
    shared.note(one, "s")
    assert shared.session_of(printed({"prompt": "User: a\nAssistant: hi\nUser: b\nAssistant:"})) == "s"
    assert shared.session_of(printed({"prompt": "User: c\nAssistant:"})) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "type",
                    "content",
                    "parts",
                    "tool_calls",
                    "function",
                    "arguments",
                    "text",
                    "functionCall",
                    "output",
                ]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_item_has_a_normal_form(item: Any) -> None:
    said = echo.turn(item)
    assert said is None or len(echo.spoken(said)) == len(echo.digest(said)) == 16
