"""The small policy and its teacher: exact text, names that are the same tokens everywhere, a script that is kept to."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytest.importorskip("torch")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forge.learn.pretrain import TOOLS, pretrain
from forge.learn.sizes import Sizes
from forge.learn.small import END, FRAME, make, untied
from forge.learn.tasks import Tool, asked, call, instances
from forge.learn.teacher import DONE, teaching
from forge.policy.llama import Llama
from forge.policy.template import Text

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("small"), 0)


def test_it_is_served_as_it_is(small: Path) -> None:
    llama, text = Llama(small), Text(small)
    assert text.encode(END) == list(llama.shape.eos)
    for each in islice(instances(0, held_out=True), 9):
        said = call(Tool.EDIT, each)
        assert text.decode(text.encode(said)) == said
        name = text.encode(each.file.removesuffix(".txt"))
        assert len(name) == 3, "a name is two words and a dash"
        for where in (each.prompt, said):
            ids = text.encode(where)
            assert any(ids[at : at + 3] == name for at in range(len(ids))), where


def test_the_template_leaves_out_what_so_small_a_model_cannot_read(small: Path) -> None:
    messages: list[dict[str, Any]] = [{"role": r, "content": f"{r} text", "tool_calls": []} for r in ("system", "user")]
    shown = Text(small).render(messages, TOOLS)
    assert "system" not in shown
    assert all(line in shown for line in FRAME.splitlines() if line.startswith("tool "))
    assert shown.endswith("user text<|im_end|>\n<|im_start|>assistant\n")


def test_other_programs_read_it_as_the_embedded_server_does(small: Path) -> None:
    """vLLM loads the tokenizer by its name, and gives the template calls whose arguments are objects again."""
    theirs, ours = AutoTokenizer.from_pretrained(small), Text(small)
    for tool, each in zip(Tool, instances(0, held_out=True), strict=False):
        said = call(tool, each)
        function = json.loads(said.removeprefix("<tool_call>").removesuffix("</tool_call>"))
        as_text = function | {"arguments": json.dumps(function["arguments"], separators=(",", ":"))}
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": each.prompt},
            {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": "whatever it says"},
        ]
        shown = theirs.apply_chat_template(talk, tools=TOOLS, add_generation_prompt=True, tokenize=False)
        talk[1] = {"role": "assistant", "content": "", "tool_calls": [as_text]}
        assert shown == ours.render(talk, TOOLS)
        assert f"assistant\n{said}{END}" in shown
        assert theirs.encode(shown, add_special_tokens=False) == ours.encode(shown)


def test_untied_it_is_the_same_model(small: Path, tmp_path: Path) -> None:
    """To whoever trains it and whoever serves it; only that its output layer is read from its own name."""
    untied(small, tmp_path)
    ids = torch.tensor([Text(small).encode(next(instances(0, held_out=True)).prompt)])
    one, other = (AutoModelForCausalLM.from_pretrained(each) for each in (small, tmp_path))
    with torch.no_grad():
        assert torch.equal(one(ids).logits, other(ids).logits)
        other.lm_head.weight += 1.0
        assert not torch.equal(one(ids).logits, other(ids).logits)
        assert torch.equal(one.model.embed_tokens.weight, other.model.embed_tokens.weight)
    assert Llama(small).shape.tied
    assert not Llama(tmp_path).shape.tied


async def test_the_teacher_calls_one_of_the_tools_and_then_is_done(small: Path) -> None:
    (instance,) = islice(instances(0, held_out=False), 1)
    named = asked(instance.prompt)
    assert named is not None
    calls = [call(tool, named) for tool in Tool]
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


def test_reading_text_makes_its_calls_likely(small: Path, tmp_path: Path) -> None:
    """And leaves a whole model directory, the same for the same seed."""
    sizes = Sizes(text_rounds=((8, 3e-3), (2, 1e-3)), text_rows=4)
    read, again = (pretrain(tmp_path / name, sizes) for name in ("one", "two"))
    assert (read / "model.safetensors").read_bytes() == (again / "model.safetensors").read_bytes()
    assert (read / "chat_template.jinja").read_text() == (small / "chat_template.jinja").read_text()
    instance = next(instances(9, held_out=True))
    text = Text(small)
    prompt = text.encode(text.render([{"role": "user", "content": instance.prompt, "tool_calls": []}], TOOLS))
    said = text.encode(call(Tool.READ, instance) + END)
    assert surprise(read, prompt, said) < 0.6 * surprise(small, prompt, said)


def surprise(model: Path, prompt: list[int], said: list[int]) -> float:
    """Mean negative log prob of what was said, nats a token."""
    loaded = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        logits = loaded(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(said)))
