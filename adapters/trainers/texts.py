"""Conversations out of a row, as text formats want them: tool arguments parsed or as text, nothing else changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from forge.adapters.trainers.base import Arguments
from forge.adapters.trainers.rows import Left, Row
from forge.storage.media import MediaStore

Message = dict[str, Any]


class Unfit(Exception):
    """The row cannot be told in this form; ``reason`` is why."""

    def __init__(self, reason: Left) -> None:
        super().__init__(reason)
        self.reason = reason


def conversation(row: Row, arguments: Arguments, media: MediaStore) -> tuple[list[Message], list[Any] | None]:
    """Messages, the reply last, and tools; media by their files' URLs. Raises ``Unfit``, and ``BadInput`` for media
    that are gone."""
    messages = msgspec.json.decode(media.linked((row.sample.messages or "[]").encode()), type=list[Message])
    if not messages or messages[-1].get("role") != "assistant" or len(messages) < 2:
        raise Unfit(Left.NO_MESSAGES)
    tools = msgspec.json.decode(row.sample.tools, type=list[Any]) if row.sample.tools else None
    return [_message(message, arguments) for message in messages], tools


def lines(
    rows: Iterable[Row], line: Callable[[Row, list[Message], list[Any] | None], Message], arguments: Arguments,
    media: MediaStore, left: Counter[str],
) -> Iterator[Message]:  # fmt: skip
    """What ``line`` makes of each row's conversation; rows that cannot be told are counted in ``left``."""
    for row in rows:
        try:
            messages, tools = conversation(row, arguments, media)
        except Unfit as error:
            left[error.reason] += 1
            continue
        yield line(row, messages, tools)


def _message(message: Message, arguments: Arguments) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [_call(call, arguments) for call in calls]}


def _call(call: dict[str, Any], arguments: Arguments) -> dict[str, Any]:
    function = call.get("function") or {}
    given = function.get("arguments")
    if arguments is Arguments.STRING:
        written = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
        return {**call, "function": {**function, "arguments": written}}
    try:
        parsed = msgspec.json.decode(given or "{}") if isinstance(given, str) else given or {}
    except msgspec.DecodeError:
        raise Unfit(Left.BAD_ARGUMENTS) from None
    if not isinstance(parsed, dict):
        # A string within a string: a model that learns from it writes quotes around its quotes, more each turn.
        raise Unfit(Left.BAD_ARGUMENTS)
    return {**call, "function": {**function, "arguments": parsed}}
