"""Chains: every prompt, message list and tool list comes back exactly, whatever the session did."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.storage.delta import SNAPSHOT_LINKS, Chain, DanglingParent, Delta, Unfolder, WrongPrompt, prompt_hash
from forge.storage.records import Call, Ids, Session
from forge.storage.samples import samples_of


def ids(*values: int) -> Ids:
    return np.asarray(values, dtype=np.int32)


def call(number: int, prompt: Ids, output: Ids, messages: list[object], **fields: object) -> Call:
    return Call(
        call_id=f"c{number}",
        run_id="r",
        session_id="s",
        seq=number,
        prompt_ids=prompt,
        output_ids=output,
        messages=msgspec.json.encode(messages).decode(),
        response=msgspec.json.encode({"role": "assistant", "content": f"r{number}"}).decode(),
        **fields,  # type: ignore[arg-type]
    )


def fold_and_unfold(calls: list[Call]) -> list[Delta]:
    chain, unfolder = Chain(), Unfolder()
    rows = [chain.add(c) for c in calls]
    for given_, row in zip(calls, rows, strict=True):
        back = unfolder.add(row)
        assert np.array_equal(back.prompt_ids, given_.prompt_ids)
        assert back.prompt_ids.dtype == np.int32
        assert (back.messages, back.tools, back.response) == (given_.messages, given_.tools, given_.response)
        assert back.call_id == given_.call_id
    remembered(chain, rows)
    return rows


def remembered(chain: Chain, rows: list[Delta]) -> None:
    """What a chain gives from memory is what its rows say."""
    unfolder = Unfolder()
    for row, held in zip(rows, chain.calls(), strict=True):
        back = unfolder.add(row)
        assert np.array_equal(held.prompt_ids, back.prompt_ids)
        assert (held.messages, held.tools, held.response) == (back.messages, back.tools, back.response)


@st.composite
def sessions(draw: st.DrawFn) -> list[Call]:
    """Calls that extend, edit, cut, repeat and forget what came before."""
    calls: list[Call] = []
    tokens = st.lists(st.integers(0, 4), max_size=8)
    for number in range(draw(st.integers(1, 14))):
        messages: list[object] = [{"role": "system", "content": "x"}]
        prompt: list[int] = draw(tokens)
        if calls and draw(st.booleans()):
            parent = draw(st.sampled_from(calls))
            history = [*parent.prompt_ids.tolist(), *parent.output_ids.tolist()]
            keep = draw(st.integers(0, len(history)))
            prompt = history[:keep] + prompt
            spoken = [*msgspec.json.decode(parent.messages), msgspec.json.decode(parent.response or "{}")]
            messages = spoken[: draw(st.integers(0, len(spoken)))]
        messages.append({"role": "user", "content": draw(st.text(max_size=3))})
        tools = draw(st.sampled_from([None, '[{"a":1}]', '[{"b":2}]']))
        calls.append(call(number, ids(*prompt), ids(*draw(tokens)), messages, tools=tools))
    return calls


@settings(max_examples=120, deadline=None)
@given(sessions())
def test_every_call_comes_back_exactly(calls: list[Call]) -> None:
    for row in fold_and_unfold(calls):
        assert row.prompt_prefix_len + len(row.prompt_suffix_ids) == row.prompt_len
        assert row.chain_len >= 0


@settings(max_examples=60, deadline=None)
@given(sessions(), st.sampled_from([", ", " ,\n"]))
def test_a_chain_remembers_messages_as_its_rows_say_them(calls: list[Call], separator: str) -> None:
    chain = Chain()
    spaced = [
        replace(call, messages=f"[{separator.join(msgspec.json.encode(m).decode() for m in messages)}]")
        for call in calls
        for messages in [msgspec.json.decode(call.messages)]
    ]
    remembered(chain, [chain.add(call) for call in spaced])


def test_a_long_chain_holds_only_what_is_new_and_is_written_whole_now_and_then() -> None:
    calls: list[Call] = []
    history, messages = list(range(100)), [{"role": "user", "content": "go"}]
    for number in range(140):
        calls.append(call(number, ids(*history), ids(7, 8), [*messages], tools="[1]"))
        history += [7, 8, number, number]
        messages += [{"role": "assistant", "content": f"r{number}"}, {"role": "user", "content": str(number)}]
    rows = fold_and_unfold(calls)
    assert [n for n, row in enumerate(rows) if row.chain_len == 0] == [0, SNAPSHOT_LINKS, 2 * SNAPSHOT_LINKS]
    for row in rows:
        if row.chain_len:
            assert len(row.prompt_suffix_ids) == 2
            assert row.call.tools is None
            assert len(msgspec.json.decode(row.call.messages)) == 1
        else:
            assert len(row.prompt_suffix_ids) == row.prompt_len
    assert [row.call.join for row in rows] == ["none"] + ["exact"] * 139


def test_choices_of_one_call_share_their_prompt() -> None:
    prompt, messages = ids(1, 2, 3), [{"role": "user", "content": "x"}]
    first = call(1, prompt, ids(4), messages)
    rows = fold_and_unfold([first, replace(first, choice=1, output_ids=ids(5))])
    assert rows[1].prompt_prefix_len == 3


def test_a_call_without_ids_or_messages_is_a_row_too() -> None:
    rows = fold_and_unfold([call(1, ids(), ids(), []), call(2, ids(), ids(3), [])])
    assert [row.prompt_hash for row in rows] == [None, None]


@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00"])
def test_half_an_emoji_costs_no_message(half: str) -> None:
    """What a harness written in JavaScript sends when it cuts a text: JSON to some readers, not to others."""
    first = call(1, ids(1), ids(2), [{"role": "user", "content": "x"}])
    text = first.messages[:-1] + ',{"role":"tool","content":"' + half + '"}]'
    second = replace(first, call_id="c2", seq=2, prompt_ids=ids(1, 2, 3), messages=text)
    fold_and_unfold([first, second, replace(second, call_id="c3", seq=3, messages=text[:-1] + ',{"role":"user"}]')])
    session = Session(session_id="s", run_id="r")
    (row,) = samples_of(session, [replace(second, trainable=True, output_log_probs=np.float32([-1]))])
    assert row.messages == f"{text[:-1]},{second.response}]"


def test_a_missing_parent_and_a_wrong_prompt_are_errors() -> None:
    chain = Chain()
    messages = [{"role": "user", "content": "x"}]
    first = chain.add(call(1, ids(1, 2), ids(3), messages))
    second = chain.add(call(2, ids(1, 2, 3, 4), ids(5), messages))
    with pytest.raises(DanglingParent, match="c1"):
        Unfolder().add(second)
    unfolder = Unfolder()
    with pytest.raises(WrongPrompt, match="2 ids"):
        unfolder.add(replace(first, prompt_hash=prompt_hash(ids(2, 1))))
    unfolder.add(first)
    with pytest.raises(WrongPrompt):
        unfolder.add(replace(second, prompt_suffix_ids=ids(9)))
