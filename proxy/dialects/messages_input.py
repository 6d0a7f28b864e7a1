"""The history of a messages request as chat messages.

Owns what each content block becomes; it must not know the engine, nor keep anything between calls. The non-obvious
facts: an answer may come back as several assistant entries and must be one message again, or the next prompt would
not extend the last one; and nothing may stand between a message's calls and their results, in the calls' order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.asked import NULL
from forge.proxy.dialects.assistant import AssistantTurn
from forge.proxy.dialects.base import BadRequest
from forge.proxy.dialects.messages_blocks import UNPARSED
from forge.proxy.dialects.messages_parts import Block, Content, Part, chat_parts, joined
from forge.proxy.dialects.spacing import spaced

NO_INPUT: Final = "{}"
FAILED: Final = "Error"
"""The text of a failed tool result that has none."""
SYSTEM_ROLES: Final = ("system", "developer")


class Entry(msgspec.Struct):
    role: str
    content: Content = None


_entries: Final = msgspec.json.Decoder(list[Raw])
_entry: Final = msgspec.json.Decoder(Entry)
_content: Final = msgspec.json.Decoder(Content)


class History:
    """Entries in, messages out."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.notices: list[Mapping[str, Any]] = []
        """What could not be said in chat."""
        self._open: AssistantTurn | None = None
        self._order: dict[str, int] = {}
        """The calls of the last assistant message, by id."""
        self._results: list[dict[str, Any]] = []
        """Of these calls."""
        self._moved: list[Part] = []
        """Parts of results that chat does not allow there."""
        self._held: list[dict[str, Any]] = []
        """System entries that stood between calls and results."""

    @property
    def ends_open(self) -> bool:
        """The last entry is the beginning of the answer, to be gone on with."""
        last = self.messages[-1] if self.messages else {}
        return last.get("role") == "assistant" and bool(last["content"]) and "tool_calls" not in last

    def add_system(self, content: Content) -> None:
        """The request's own ``system``."""
        if text := joined(part for part in self._parts(content) if part["type"] == "text"):
            self.messages.append({"role": "system", "content": text})

    def add(self, value: Raw) -> None:
        """The request's ``messages``."""
        try:
            entries = _entries.decode(value)
        except splice.UNREADABLE as failure:
            raise BadRequest(f"messages: {failure}", param="messages") from failure
        for place, raw in enumerate(entries):
            try:
                entry = _entry.decode(raw)
            except splice.UNREADABLE as failure:
                raise BadRequest(f"messages.{place}: {failure}", param="messages") from failure
            if entry.role == "assistant":
                self._assistant(entry.content)
            elif entry.role == "user":
                self._user(entry.content)
            elif entry.role in SYSTEM_ROLES:
                self._system(entry.content)
            else:
                words = "'user', 'assistant' or 'system'"
                raise BadRequest(f"messages.{place}.role: {entry.role!r} is not {words}", param="messages")
        self._end_turn()
        self._end_results()

    # Entries

    def _system(self, content: Content) -> None:
        """One without text says nothing to a model: Claude Code sends such."""
        self._end_turn()
        text = joined(part for part in self._parts(content) if part["type"] == "text")
        if not text:
            return
        message = {"role": "system", "content": text}
        if len(self._results) < len(self._order):
            self._held.append(message)
        else:
            self._end_results()
            self.messages.append(message)

    def _user(self, content: Content) -> None:
        self._end_turn()
        blocks = content if isinstance(content, list) else []
        results = [block for block in blocks if block.type == "tool_result"]
        for block in results:
            self._result(block)
        rest = [block for block in blocks if block.type != "tool_result"]
        if not results:
            self._end_results()
            self._said(self._parts(content))
        elif rest and (parts := self._parts(rest)):
            self._end_results(parts)

    def _assistant(self, content: Content) -> None:
        if self._open is None:
            self._end_results()
        self._turn()
        more = False
        for block in content if isinstance(content, list) else [Block("text", text=content)]:
            if block.type == "text":
                self._text(block.text or "", more=more)
                more = True
            elif block.type == "thinking":
                self._thinking(block.thinking or "")
            elif block.type == "tool_use":
                self._call(block)
            else:
                self.notices.append({"edit": "dropped_block", "type": block.type})

    # Blocks

    def _text(self, text: str, *, more: bool) -> None:
        """``more``: not the entry's first."""
        turn = self._turn()
        if text and turn.content is not None and not turn.calls and not more:
            turn = self._turn(new=True)
        if text:
            # Text after a call is the same message in chat: its content and its calls are two fields.
            turn.content = (turn.content or "") + text

    def _thinking(self, text: str) -> None:
        turn = self._turn()
        if text and (turn.content is not None or turn.calls):
            turn = self._turn(new=True)
        turn.reasoning += text

    def _call(self, block: Block) -> None:
        function = {"name": block.name or "", "arguments": _arguments(bytes(block.input))}
        self._turn().calls.append({"id": block.id or "", "type": "function", "function": function})

    def _result(self, block: Block) -> None:
        parts = self._parts(_read_result(block))
        text = joined(part for part in parts if part["type"] == "text")
        if not text and block.is_error:
            text = FAILED
        call_id = block.tool_use_id or ""
        if moved := [part for part in parts if part["type"] != "text"]:
            self.notices.append({"edit": "moved_image", "call_id": call_id, "count": len(moved)})
            self._moved += moved
        self._results.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _parts(self, content: Content) -> list[Part]:
        parts, dropped = chat_parts(content)
        self.notices += dropped
        return parts

    # Order

    def _turn(self, *, new: bool = False) -> AssistantTurn:
        if new:
            self._end_turn()
        if self._open is None:
            self._open = AssistantTurn()
        return self._open

    def _end_turn(self) -> None:
        """Ends the open assistant message; results of its calls may follow."""
        if self._open is not None:
            self.messages.append(self._open.message())
            self._order = {call["id"]: place for place, call in enumerate(self._open.calls)}
            self._open = None

    def _end_results(self, parts: Sequence[Part] = ()) -> None:
        """The results of the last calls in the calls' order, what was moved out of them with the user's own ``parts``,
        then the system entries that stood before them."""
        last = len(self._order)
        self.messages += sorted(self._results, key=lambda result: self._order.get(result["tool_call_id"], last))
        if self._moved or parts:
            self._said([*self._moved, *parts])
        self.messages += self._held
        self._order, self._results, self._moved, self._held = {}, [], [], []

    def _said(self, parts: list[Part]) -> None:
        plain = all(part["type"] == "text" for part in parts)
        self.messages.append({"role": "user", "content": joined(parts) if plain else parts})


def _read_result(block: Block) -> Content:
    """A tool result's content; one of no known shape is its own text."""
    try:
        return _content.decode(block.content)
    except splice.UNREADABLE:
        return bytes(block.content).decode("utf-8", "replace")


class _Unparsed(msgspec.Struct):
    raw: str


_unparsed: Final = msgspec.json.Decoder(dict[str, _Unparsed])


def _arguments(given: bytes) -> str:
    """As the policy wrote them: those that were no JSON object came as text inside one."""
    if given == bytes(NULL):
        return NO_INPUT
    if UNPARSED.encode() in given:
        try:
            found = _unparsed.decode(given)
        except splice.UNREADABLE:
            return spaced(given)
        if list(found) == [UNPARSED]:
            return found[UNPARSED].raw
    return spaced(given)
