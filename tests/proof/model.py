"""The policy of the proof: says something, in the markup of its template, and in ids of its own choosing.

A model is free to sample other ids than a tokenizer would give for the same text, and other blanks in its JSON than a
template writes: both are what re-tokenised histories lose.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

from tests.proof.templates import Message, Template

WORDS = "the file src/main.py holds naïve 漢字 code, so 1.5 tests run: ok\n- yes 👩\u200d🚀 no\tdone".split(" ")  # noqa: SIM905
TOOLS = ("bash", "read_file")


@dataclass(frozen=True)
class Reply:
    message: Message
    """What the server parsed of it."""
    ids: list[int]


def says(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def tools() -> list[Any]:
    schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
    return [{"type": "function", "function": {"name": name, "description": "", "parameters": schema}} for name in TOOLS]


def sample(rng: random.Random, template: Template, messages: list[Message], offered: list[Any] | None) -> Reply:
    message: Message = {"role": "assistant", "content": says(rng, 0, 12)}
    if rng.random() < 0.5:
        message["reasoning"] = says(rng, 1, 10)
    if offered and rng.random() < 0.6:
        count = rng.choice((1, 1, 2)) if template.style.parallel else 1
        message["tool_calls"] = [_call(rng, n) for n in range(count)]
        if not template.style.parallel:
            message["content"] = ""
    return Reply(message, _ids(rng, template, _text(rng, template, messages, message, offered)))


def _call(rng: random.Random, number: int) -> Message:
    arguments: Any = {"command": says(rng, 1, 5), "timeout": rng.randint(1, 9)}
    text = json.dumps(
        arguments, ensure_ascii=rng.random() < 0.1, separators=rng.choices(((", ", ": "), (",", ":")), (4, 1))[0]
    )
    if rng.random() < 0.06:
        text = text[:-3]  # malformed: the harness will say so
    name = rng.choice(TOOLS)
    identity = f"call_{rng.getrandbits(32):08x}_{number}"
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": text}}


def _text(
    rng: random.Random, template: Template, messages: list[Message], message: Message, offered: list[Any] | None
) -> str:
    """As the template itself writes the turn, where that goes on from the prompt; else plain markup."""
    prompt = template.render(messages, offered, generate=True)
    whole = template.render([*messages, message], offered, generate=False)
    eos = template.style.eos
    if whole.startswith(prompt) and rng.random() < 0.9:
        text = whole[len(prompt) :]
        end = text.rfind(eos)
        text = text[: end + len(eos)] if end >= 0 else text + eos
        return text.replace('": "', '":"') if rng.random() < 0.1 else text
    thought = f"<think>\n{message['reasoning']}\n</think>\n\n" if message.get("reasoning") else ""
    calls = "".join(
        f"\n<tool_call>\n{json.dumps({'name': c['function']['name']})[:-1]}, "
        f'"arguments": {c["function"]["arguments"]}}}\n</tool_call>'
        for c in message.get("tool_calls") or ()
    )
    return f"{thought}{message['content']}{calls}{eos}"


def _ids(rng: random.Random, template: Template, text: str) -> list[int]:
    if rng.random() < 0.85:
        return template.encode(text)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 3)))
    body = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return [i for piece in body for i in template.encode(piece)]
