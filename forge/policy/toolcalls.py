"""Tool calls out of the model's text, as it streams.

Sans I/O: text goes in by pieces of any size, content and calls come out, and how the text was cut makes no difference
(a property test holds that). A call comes out whole, when its end tag has come. The arguments stay the text the model
wrote, so that rendering them again gives the same text. Not obvious: what stands between the tags but is no call is
given out as content with its tags: a text without them would not be what the sampled tokens say, and nothing could
learn from their row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON text of an object, as the model wrote it."""


@dataclass(slots=True)
class Parsed:
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)


class ToolParser:
    """``feed`` pieces, then ``finish`` once."""

    def __init__(self) -> None:
        self._pending = ""
        self._inside = False
        self._after_call = False
        """White space after a call is held until something else than a call follows."""

    def feed(self, piece: str) -> Parsed:
        self._pending += piece
        out = Parsed()
        while self._inside or BEGIN in self._pending:
            text, tag, rest = self._pending.partition(END if self._inside else BEGIN)
            if not tag:
                return out
            self._close(text, END, out) if self._inside else self._say(text, out)
            self._inside, self._pending = not self._inside, rest
        sure = len(self._pending) - _held(self._pending, BEGIN)
        if not (self._after_call and self._pending[:sure].isspace()):
            self._say(self._pending[:sure], out)
            self._pending = self._pending[sure:]
        return out

    def finish(self) -> Parsed:
        """What was held back; a call that was cut short is content."""
        out = Parsed()
        if self._inside:
            body = self._pending[: len(self._pending) - _held(self._pending, END)]
            self._close(body, self._pending[len(body) :], out)
        else:
            self._say(self._pending, out)
        self._pending, self._inside = "", False
        return out

    def _say(self, text: str, out: Parsed) -> None:
        if text and not (self._after_call and text.isspace()):
            out.content += text
            self._after_call = False

    def _close(self, body: str, end: str, out: Parsed) -> None:
        """``end``: as much of the tag as came."""
        call = _call(body)
        if call is not None:
            out.calls.append(call)
            self._after_call = True
        else:
            self._say(f"{BEGIN}{body}{end}", out)


def _held(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the start of ``tag``."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


def _call(body: str) -> ToolCall | None:
    try:
        value = json.loads(body)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], _member(body, "arguments") or "{}")


def _member(body: str, name: str) -> str | None:
    """The text of the last member ``name`` of the JSON object in ``body``, which is known to parse."""
    decoder = json.JSONDecoder()
    at, found = body.index("{") + 1, None
    while True:
        while body[at] in " \t\r\n,":
            at += 1
        if body[at] == "}":
            return found
        key, at = decoder.raw_decode(body, at)
        while body[at] in " \t\r\n:":
            at += 1
        start = at
        _, at = decoder.raw_decode(body, at)
        if key == name:
            found = body[start:at]
