"""Real chat templates and real tokenizers, from packages that ship them, as a policy server uses them.

A server parses a call's arguments before its template sees them, reads thoughts from ``reasoning``, and gives an image
a fixed number of placeholder ids whatever it shows: so does ``Template``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

from forge.adapters.harnesses.packages import PyPI
from forge.policy.model import ensure_model
from forge.policy.template import default_template
from forge.storage.cache import cache_root

Message = dict[str, Any]
TRL = PyPI(name="trl", version="1.16.0", requirement="trl==1.16.0", program="trl/chat_templates/qwen3.jinja")
ANTHROPIC = PyPI(
    name="anthropic", version="0.34.2", requirement="anthropic==0.34.2", program="anthropic/tokenizer.json"
)
"""The last one that ships a tokenizer: another vocabulary, of another kind of text."""
IMAGE = "<|image_pad|>" * 4


@dataclass(frozen=True)
class Style:
    """What a template's model writes around its turns."""

    name: str
    eos: str
    specials: tuple[str, ...]
    source: str | None = None
    """A file of TRL's; None for our default model's own."""
    parallel: bool = True
    """It knows several calls in one turn."""


CHATML = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|image_pad|>")
LLAMA = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image_pad|>",
)
GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", *CHATML[2:])
STYLES = (
    Style("smollm2", "<|im_end|>", CHATML),
    Style("hermes", "<|im_end|>", CHATML, "qwen2_5"),
    Style("qwen3", "<|im_end|>", CHATML, "qwen3"),
    Style("llama3", "<|eot_id|>", LLAMA, "llama3_1", parallel=False),
    Style("glm4", "<|user|>", GLM, "glm4moe"),
)


class Template:
    def __init__(self, style: Style, tokenizer: Tokenizer) -> None:
        self.style = style
        self._tokenizer = tokenizer
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **how: json.dumps(
            value, ensure_ascii=False, indent=how.get("indent")
        )
        environment.globals["raise_exception"] = _raise
        self._compiled = environment.from_string(_source(style))

    def render(self, messages: list[Message], tools: list[Any] | None, *, generate: bool) -> str:
        prepared = [_prepared(message, plain=self.style.source is None) for message in messages]
        text: str = self._compiled.render(
            messages=prepared, tools=tools or None, add_generation_prompt=generate, bos_token="<|begin_of_text|>"
        )
        return text

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def all_templates() -> list[Template]:
    """Each style on each tokenizer."""
    return [Template(style, tokenizer) for style in STYLES for tokenizer in _tokenizers(style.specials)]


def _tokenizers(specials: tuple[str, ...]) -> list[Tokenizer]:
    found = []
    for file in (ensure_model() / "tokenizer.json", _package(ANTHROPIC) / ANTHROPIC.program):
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
        found.append(tokenizer)
    return found


def _source(style: Style) -> str:
    if style.source is None:
        return default_template()
    return (_package(TRL) / "trl/chat_templates" / f"{style.source}.jinja").read_text()


@cache
def _package(package: PyPI) -> Path:
    folder = cache_root() / "proof"
    folder.mkdir(parents=True, exist_ok=True)
    package.install(folder, print)
    return folder / package.folder


def _prepared(message: Message, *, plain: bool) -> Message:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(IMAGE if part["type"] == "image_url" else part["text"] for part in content)
    made: Message = {"role": message["role"], "content": content or ""}
    if message.get("reasoning"):
        made |= {"reasoning": message["reasoning"], "reasoning_content": message["reasoning"]}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if plain:
        return made | {"tool_calls": [{"name": c["name"], "arguments": c["arguments"] or "{}"} for c in calls]}
    if calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": c["name"], "arguments": _object(c["arguments"])}} for c in calls
        ]
    return made


def _object(arguments: str) -> dict[str, Any]:
    """As vLLM does: what is no JSON object becomes an empty one."""
    try:
        value = json.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _raise(message: str) -> None:
    raise TemplateError(message)
