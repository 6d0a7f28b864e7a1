"""The small policy and its teacher: exact text, names that are the same tokens everywhere, a script that is kept to."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")

from forge.learn.small import END, make
from forge.learn.tasks import Tool, asked, call, instances
from forge.learn.teacher import DONE, teaching
from forge.policy.llama import Llama
from forge.policy.template import Text

pytestmark = pytest.mark.model

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": tool.value, "parameters": {"properties": {"path": {}, "more": {}}}}}
    for tool in Tool
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("small"), 0)


def test_it_is_served_as_it_is(small: Path) -> None:
    llama, text = Llama(small), Text(small)
    assert text.encode(END) == list(llama.shape.eos)
    for each in islice(instances(0, held_out=True), 9):
        said = call(Tool.EDIT, *asked(each.prompt) or ("", "", ""))
        assert text.decode(text.encode(said)) == said
        name = text.encode(each.file.removesuffix(".txt"))
        assert len(name) == 3, "a name is two words and a dash"
        for where in (each.prompt, said):
            ids = text.encode(where)
            assert any(ids[at : at + 3] == name for at in range(len(ids))), where


def test_the_template_leaves_out_what_so_small_a_model_cannot_read(small: Path) -> None:
    messages = [{"role": r, "content": f"{r} text", "tool_calls": []} for r in ("system", "user")]
    shown = Text(small).render(messages, TOOLS)
    assert "system" not in shown
    assert "tool write(path, more)" in shown
    assert shown.endswith("user text<|im_end|>\n<|im_start|>assistant\n")


async def test_the_teacher_calls_one_of_the_tools_and_then_is_done(small: Path) -> None:
    (instance,) = islice(instances(0, held_out=False), 1)
    calls = [call(tool, *asked(instance.prompt) or ("", "", "")) for tool in Tool]
    messages: list[dict[str, Any]] = [{"role": "user", "content": instance.prompt}]
    async with teaching(small, 0) as url, aiohttp.ClientSession(url) as http:

        async def ask() -> dict[str, Any]:
            body = {"messages": messages, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
            async with http.post("/v1/chat/completions", json=body) as answer:
                found: dict[str, Any] = (await answer.json())["choices"][0]
                return found

        first = await ask()
        assert Text(small).decode(first["token_ids"]).removesuffix(END) in calls
        assert all(-1e-3 < each["logprob"] < 0 for each in first["logprobs"]["content"])
        messages += [first["message"], {"role": "tool", "tool_call_id": "x", "content": "whatever it says"}]
        assert (await ask())["message"]["content"] == DONE
        messages[:] = [{"role": "user", "content": "a probe of the proxy's"}]
        assert (await ask())["message"]["content"] == DONE
