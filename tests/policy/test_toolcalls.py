"""Tool calls are read the same however the text is cut, and what is no call is content as it was sampled."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from forge.policy.toolcalls import Parsed, ToolCall, ToolParser

TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "\n",
                " ",
                "<",
                "<tool",
                "</tool_call",
                '{"name": "f", "arguments": {"a": 1}}',
                '{"name": "f"}',
                '{"name": 3}',
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=12,
).map("".join)


def read(pieces: list[str]) -> Parsed:
    parser = ToolParser()
    parts = [parser.feed(piece) for piece in pieces]
    parts.append(parser.finish())
    return Parsed("".join(p.content for p in parts), [call for p in parts for call in p.calls])


def cut(text: str, at: list[int]) -> list[str]:
    edges = [0, *sorted(i % (len(text) + 1) for i in at), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXTS, st.lists(st.integers(0, 200), max_size=8))
def test_any_cut_reads_the_same(text: str, at: list[int]) -> None:
    assert read(cut(text, at)) == read([text])


@given(TEXTS, st.lists(st.integers(0, 200), max_size=8))
def test_a_text_without_calls_is_content_to_the_letter(text: str, at: list[int]) -> None:
    """Else it would not be what its tokens say."""
    found = read(cut(text, at))
    assert found.calls or found.content == text


@given(TEXTS)
def test_no_tag_of_a_call_is_content(text: str) -> None:
    plain = text.replace("<", "")
    found = read([f'{plain}<tool_call>{{"name": "f"}}</tool_call>{plain}'])
    assert (found.content.replace(plain, "").strip(), found.calls) == ("", [ToolCall("f", "{}")])


@given(st.dictionaries(st.text(), st.one_of(st.integers(), st.text(), st.none(), st.lists(st.integers()))))
def test_arguments_stay_as_the_model_wrote_them(arguments: dict[str, object]) -> None:
    text = json.dumps(arguments, indent=1).replace("</tool_call>", "")
    found = read([f'<tool_call>\n{{"arguments": {text}, "name": "f"}}\n</tool_call>'])
    assert found == Parsed("", [ToolCall("f", text)])


def test_calls_and_what_stands_around_them() -> None:
    first, second = '{"name":"a","arguments":{}}', '{"name":"b","arguments":{"x":[1]}}'
    text = f"so:\n<tool_call>{first}</tool_call>\n<tool_call>{second}</tool_call>\n"
    assert read([text]) == Parsed("so:\n", [ToolCall("a", "{}"), ToolCall("b", '{"x":[1]}')])


def test_a_call_cut_short_is_content() -> None:
    for text in ('<tool_call>\n{"name": "f", "argu', "<tool_call>x</tool_ca"):
        assert read([text]) == Parsed(text, [])


def test_a_whole_call_without_its_end_tag_is_a_call() -> None:
    assert read(['<tool_call>{"name": "f", "arguments": {}}</tool_c']) == Parsed("", [ToolCall("f", "{}")])


def test_what_is_no_call_is_content() -> None:
    for body in ('{"name": 1}', '{"arguments": {}}', '{"name": "f", "arguments": [1]}', "[]", "x"):
        text = f"<tool_call>{body}</tool_call>"
        assert read([text]) == Parsed(text, [])
