"""The answer's text against its ids: is what the harness was told among what was sampled?

Pure. Not obvious: a parser may rewrite what it hands on (markup is gone, arguments are set anew), so only what it
cannot have made up is looked for: the text's letters in their order, a tool's name, and every string in its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from forge.storage.records import Call


def missing(call: Call, decoded: str) -> str | None:
    """What the answer says and the ids do not; None if all is there."""
    try:
        message = msgspec.json.decode(call.response or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    sampled = _squeezed(decoded)
    content = message.get("content")
    if isinstance(content, str) and not _in_order(_squeezed(content.replace("\ufffd", "")), sampled):
        return f"the text {content[:60]!r}"
    for tool in message.get("tool_calls") or []:
        function = tool.get("function") or {} if isinstance(tool, dict) else {}
        name = function.get("name")
        if isinstance(name, str) and _squeezed(name) not in sampled:
            return f"a call of the tool {name!r}"
        for value in _strings(function.get("arguments")):
            written = (value, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(value)[1:-1])
            if not any(_squeezed(way) in sampled for way in written):
                return f"the argument {value[:60]!r} of the tool {name!r}"
    return None


def _strings(arguments: Any) -> Iterator[str]:
    try:
        todo = [json.loads(arguments) if isinstance(arguments, str) else arguments]
    except ValueError:
        return
    while todo:
        value = todo.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _in_order(text: str, sampled: str) -> bool:
    """Markup that was taken out may have stood anywhere in it."""
    left = iter(sampled)
    return all(letter in left for letter in text)


def _squeezed(text: str) -> str:
    """Without white space, which decoders and parsers trim and set anew."""
    return "".join(text.split())
