"""The prompt text to the letter, and text from ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.policy.template import Detokenizer, Text
from forge.storage.errors import BadInput

pytestmark = pytest.mark.model

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOLS = """

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "f", "description": "<b> ü"}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@pytest.fixture(scope="module")
def text(smollm2: Path) -> Text:
    return Text(smollm2)


def message(role: str, content: str, *calls: tuple[str, str]) -> dict[str, object]:
    return {"role": role, "content": content, "tool_calls": [{"name": n, "arguments": a} for n, a in calls]}


def test_a_plain_chat_is_chatml(text: Text) -> None:
    assert text.render([message("user", "hi\n")], None) == (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\nhi\n<|im_end|>\n<|im_start|>assistant\n"
    )
    chat = [message("system", "S"), message("user", "a"), message("assistant", "b"), message("user", "")]
    assert text.render(chat, None) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_calls_and_their_answers(text: Text) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "<b> ü"}}]
    chat = [
        message("user", "go"),
        message("assistant", "", ("f", '{"a":1}'), ("g", "{}")),
        message("tool", "1"),
        message("tool", "2"),
    ]
    assert text.render(chat, tools) == (
        f"<|im_start|>system\n{SYSTEM}{TOOLS}<|im_end|>\n<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "f", "arguments": {"a":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\n1\n</tool_response><|im_end|>\n"
        "<|im_start|>tool\n<tool_response>\n2\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_template_is_of_the_converted_model(smollm2: Path, text: Text) -> None:
    from transformers import AutoTokenizer

    chat = [message("user", "hi"), message("assistant", "", ("f", "{}")), message("tool", "x")]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    theirs = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert theirs == text.render(chat, None)
    assert list(tokenizer(theirs, add_special_tokens=False)["input_ids"]) == text.encode(theirs)


@given(st.lists(st.integers(0, 49151), max_size=30))
def test_ids_one_by_one_give_the_text_of_all(text: Text, ids: list[int]) -> None:
    words = Detokenizer(text)
    assert "".join(map(words.feed, ids)) + words.finish() == text.tokenizer.decode(ids, skip_special_tokens=True)


@given(st.text('aZ0 \n\té你好😀<|>{}"\\'))
def test_text_goes_there_and_back(text: Text, said: str) -> None:
    # not for every text: the vocabulary lacks some control characters and bytes
    assert text.decode(text.encode(said)) == said


def test_a_directory_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"tokenizer\.json"):
        Text(tmp_path)
