"""Random histories in every wire format, the rewrites that harnesses do to them, and changes of what they mean.

A history is a list of neutral turns; ``write`` puts it into one wire format. A rewrite changes how it is written and
nothing else, a change says something else.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

Json = dict[str, Any]
WORDS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
VALUES = st.recursive(
    st.integers(-99, 99) | st.booleans() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["path", "status", "reasoning", "index", "b"]), VALUES, max_size=3)
CALL = st.fixed_dictionaries({"name": WORDS, "arguments": ARGUMENTS, "id": WORDS.map(lambda w: f"call_{w}-1")})
TURN = st.one_of(
    st.fixed_dictionaries({"user": TEXTS}),
    st.fixed_dictionaries(
        {"text": TEXTS | st.just(""), "thinks": st.none() | TEXTS, "calls": st.lists(CALL, max_size=2)}
    ),
)
HISTORIES = st.lists(TURN, min_size=1, max_size=5)
FORMATS = ("chat", "messages", "responses", "gemini")


def write(turns: list[Json], wire: str, system: str = "be good") -> Json:
    """A request's body."""
    members = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}
    writer = {"chat": _chat, "messages": _messages, "responses": _responses, "gemini": _gemini}[wire]
    body: Json = {"model": "m", members[wire]: [item for turn in turns for item in writer(turn)]}
    if wire == "chat":
        body["messages"].insert(0, {"role": "system", "content": system})
    elif wire == "messages":
        body["system"] = [{"type": "text", "text": system}]
    elif wire == "responses":
        body["instructions"] = system
    else:
        body["systemInstruction"] = {"parts": [{"text": system}]}
    return body


def _chat(turn: Json) -> list[Json]:
    if "user" in turn:
        return [{"role": "user", "content": turn["user"]}]
    message: Json = {"role": "assistant", "content": turn["text"]}
    if turn["thinks"] is not None:
        message["reasoning_content"] = turn["thinks"]
    if turn["calls"]:
        message["tool_calls"] = [
            {
                "id": c["id"],
                "type": "function",
                "function": {"name": c["name"], "arguments": json.dumps(c["arguments"])},
            }
            for c in turn["calls"]
        ]
    return [message, *({"role": "tool", "tool_call_id": c["id"], "content": "done"} for c in turn["calls"])]


def _messages(turn: Json) -> list[Json]:
    if "user" in turn:
        return [{"role": "user", "content": turn["user"]}]
    blocks: list[Json] = []
    if turn["thinks"] is not None:
        blocks.append({"type": "thinking", "thinking": turn["thinks"], "signature": "sig"})
    if turn["text"]:
        blocks.append({"type": "text", "text": turn["text"]})
    blocks += [{"type": "tool_use", "id": c["id"], "name": c["name"], "input": c["arguments"]} for c in turn["calls"]]
    results = [{"type": "tool_result", "tool_use_id": c["id"], "content": "done"} for c in turn["calls"]]
    answered = [{"role": "user", "content": results}] if results else []
    return [{"role": "assistant", "content": blocks}, *answered]


def _responses(turn: Json) -> list[Json]:
    if "user" in turn:
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn["user"]}]}]
    items: list[Json] = []
    if turn["thinks"] is not None:
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": turn["thinks"]})
    if turn["text"]:
        items.append(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": turn["text"]}]}
        )
    for call in turn["calls"]:
        rest = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        items.append({"type": "function_call", "id": "fc_1", "call_id": call["id"]} | rest)
    items += [{"type": "function_call_output", "call_id": c["id"], "output": "done"} for c in turn["calls"]]
    return items


def _gemini(turn: Json) -> list[Json]:
    if "user" in turn:
        return [{"role": "user", "parts": [{"text": turn["user"]}]}]
    parts: list[Json] = []
    if turn["thinks"] is not None:
        parts.append({"text": turn["thinks"], "thought": True})
    if turn["text"]:
        parts.append({"text": turn["text"]})
    parts += [{"functionCall": {"id": c["id"], "name": c["name"], "args": c["arguments"]}} for c in turn["calls"]]
    results = [
        {"functionResponse": {"id": c["id"], "name": c["name"], "response": {"status": "done"}}} for c in turn["calls"]
    ]
    answered = [{"role": "user", "parts": results}] if results else []
    return [{"role": "model", "parts": parts}, *answered]


def rewritten(value: Any, dice: random.Random) -> Any:
    """A body as some harness echoes it: every kind of rewrite, each with even odds."""
    if isinstance(value, list):
        kept = [rewritten(entry, dice) for entry in value]
        return [entry for entry in kept if not _thinking(entry) or dice.random() < 0.5]
    if not isinstance(value, dict):
        return value
    found: Json = {}
    for name in dice.sample(list(value), len(value)):
        entry = value[name]
        if name in ("id", "call_id", "tool_call_id", "tool_use_id"):
            found[name] = "".join(c for c in entry if c.isalnum()) if dice.random() < 0.5 else entry
        elif name == "arguments" and isinstance(entry, str):
            found[name] = json.dumps(
                shuffled(json.loads(entry), dice), separators=dice.choice([(",", ":"), (", ", ": ")])
            )
        elif name in ("input", "args") and isinstance(entry, dict):
            found[name] = shuffled(entry, dice)
        elif name in ("reasoning_content", "signature", "encrypted_content"):
            if dice.random() < 0.5:
                found[name] = entry
        elif name == "content" and isinstance(entry, str):
            found[name] = _flipped(entry, value.get("role"), dice)
        elif name == "text" and isinstance(entry, str) and not value.get("thought"):
            found[name] = _padded(entry, dice)
        else:
            found[name] = rewritten(entry, dice)
    if "role" in value or value.get("type") in ("text", "tool_use", "tool_result"):
        for name, noise in (("cache_control", {"type": "ephemeral"}), ("annotations", []), ("status", "completed")):
            if dice.random() < 0.2:
                found[name] = noise
    return found


def _thinking(entry: Any) -> bool:
    return isinstance(entry, dict) and (entry.get("type") in ("thinking", "reasoning") or entry.get("thought") is True)


def _flipped(text: str, role: str | None, dice: random.Random) -> Any:
    if not text:
        return dice.choice(["", None, []])
    text = _padded(text, dice)
    if role == "user" and dice.random() < 0.3:
        text = dice.choice(["[2026-11-30 07:50:27 UTC] ", "[Mon 2026-11-30 07:50 GMT+1] "]) + text
    return [{"type": "text", "text": text}] if dice.random() < 0.5 else text


def _padded(text: str, dice: random.Random) -> str:
    return dice.choice(["", "\n", " "]) + text + dice.choice(["", "\n", "  "])


def shuffled(value: Any, dice: random.Random) -> Any:
    if isinstance(value, dict):
        return {name: shuffled(value[name], dice) for name in dice.sample(list(value), len(value))}
    return [shuffled(entry, dice) for entry in value] if isinstance(value, list) else value


# What says something else. Each gives None where the turn has no such thing.


def other_word(turn: Json) -> Json | None:
    name = "user" if "user" in turn else "text"
    return turn | {name: turn[name] + " more"}


def other_argument(turn: Json) -> Json | None:
    if not turn.get("calls"):
        return None
    changed = copy.deepcopy(turn)
    changed["calls"][-1]["arguments"]["status"] = "another value than any"
    return changed


def other_tool(turn: Json) -> Json | None:
    if not turn.get("calls"):
        return None
    changed = copy.deepcopy(turn)
    changed["calls"][0]["name"] += "x"
    return changed


def one_call_more(turn: Json) -> Json | None:
    if "calls" not in turn:
        return None
    return turn | {"calls": [*turn["calls"], {"name": "added", "arguments": {}, "id": "call_added"}]}


CHANGES: tuple[Callable[[Json], Json | None], ...] = (other_word, other_argument, other_tool, one_call_more)
