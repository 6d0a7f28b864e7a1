"""The engine's chat answer as a response: its events in order, its final object.

Owns the life cycle: created, in progress, each item opened, extended and ended before the next one opens, then one
closing event. It must not know sockets or engines. The non-obvious facts: Codex acts on ``output_item.done`` and
nothing else, so those wait for the journal; and every stream ends with completed, incomplete or failed, or Codex
waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from forge.proxy.dialects.base import Hold, Piece
from forge.proxy.dialects.responses_items import Event, OutputItem, Reasoning, Text, ToolCall
from forge.proxy.dialects.responses_request import Translated
from forge.proxy.dialects.translated import PromptDetails, Usage
from forge.proxy.engines.shapes import Message
from forge.proxy.engines.shapes import ToolCall as CallDelta

INCOMPLETE: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Finish reasons of an answer that was cut, and the words for it."""


class ResponseComposer:
    """A ``Composer`` of the responses format."""

    def __init__(self, translated: Translated, *, call_id: str, created: int, model: str | None) -> None:
        self._translated = translated
        self._call_id = call_id
        self._head: dict[str, Any] = {
            "id": f"resp_{call_id}",
            "object": "response",
            "created_at": created,
            "model": model or "",
            "instructions": None,
            "previous_response_id": None,
            "tools": [],
            **translated.echo,
        }
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._item: OutputItem | None = None
        self._calls: dict[int, ToolCall] = {}
        self._ids: set[str | None] = set()
        """The engine's, of its calls so far: a second call by the same id gets one of ours."""
        self._pieces: list[Piece] = []
        self._finish = ""
        self.final: dict[str, Any] | None = None
        """The response object, once the answer has ended."""

    def pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def start(self, prompt_tokens: int | None) -> None:
        response = self._response("in_progress")
        self._emit([("response.created", {"response": response}), ("response.in_progress", {"response": response})])

    def take(self, delta: Message) -> None:
        """Raises ``ValueError`` on a piece of a call that has ended."""
        reasoning = delta.reasoning if delta.reasoning is not None else delta.reasoning_content
        if reasoning:
            self._reasoning(reasoning)
        if text := delta.content or delta.refusal:
            self._text(text)
        for place, call in enumerate(delta.tool_calls or ()):
            self._call(call.index if call.index is not None else place, call)

    def settle(self, finish: str, matched: str | None) -> None:
        self._finish = finish
        if self._item is None and not self._output:
            # An answer without a word is a message all the same: it must be in the history that follows it.
            self._open(Text(self._id("msg"), 0))
        self._close("incomplete" if finish in INCOMPLETE else "completed")

    def end(self, usage: Usage | None) -> None:
        reason = INCOMPLETE.get(self._finish)
        status = "completed" if reason is None else "incomplete"
        details = None if reason is None else {"reason": reason}
        self.final = self._response(status, usage=_usage(usage), incomplete_details=details)
        self._emit([(f"response.{status}", {"response": self.final})], Hold.CLOSE)

    def fail(self, code: str, message: str) -> None:
        self.final = self._response("failed", error={"code": code, "message": message})
        self._emit([("response.failed", {"response": self.final})], Hold.CLOSE)

    def _reasoning(self, text: str) -> None:
        item = self._item
        if not isinstance(item, Reasoning):
            self._close()
            item = Reasoning(self._id("rs"), len(self._output), hides=self._translated.hides_reasoning)
            self._open(item)
        self._emit([item.more(text)])

    def _text(self, text: str) -> None:
        item = self._item
        if not isinstance(item, Text):
            self._close()
            item = Text(self._id("msg"), len(self._output))
            self._open(item)
        self._emit([item.more(text)])

    def _call(self, index: int, delta: CallDelta) -> None:
        name = (delta.function.name if delta.function else None) or ""
        arguments = (delta.function.arguments if delta.function else None) or ""
        call = self._calls.get(index)
        if call is None:
            self._close()
            place = len(self._output)
            engine_id = delta.id if delta.id not in self._ids else None
            self._ids.add(delta.id)
            call = ToolCall(self._call_id, place, place, engine_id, name, self._translated.tools)
            self._calls[index] = call
            self._open(call)
        elif call is not self._item:
            raise ValueError("the policy server went back to a tool call it had left")
        if arguments and (event := call.more(arguments)) is not None:
            self._emit([event])

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._call_id}_{len(self._output)}"

    def _open(self, item: OutputItem) -> None:
        self._item = item
        self._emit(item.opened())

    def _close(self, status: str = "completed") -> None:
        item, self._item = self._item, None
        if item is None:
            return
        final = item.object(status)
        done: Event = ("response.output_item.done", {"output_index": len(self._output), "item": final})
        self._output.append(final)
        self._emit([*item.ended(status), done], Hold.DATA)

    def _response(self, status: str, **members: Any) -> dict[str, Any]:
        empty = {"error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, "output": list(self._output), **empty, **members}

    def _emit(self, events: Iterable[Event], hold: Hold = Hold.NOTHING) -> None:
        data = b"".join(self._event(name, members) for name, members in events)
        if data:
            self._pieces.append(Piece(data, hold))

    def _event(self, name: str, members: dict[str, Any]) -> bytes:
        body = msgspec.json.encode({"type": name, "sequence_number": self._sequence, **members})
        self._sequence += 1
        return b"event: " + name.encode() + b"\ndata: " + body + b"\n\n"


def _usage(usage: Usage | None) -> dict[str, Any] | None:
    """The engine's own counts: harnesses compact by them. None where it gave none."""
    if usage is None or usage.completion_tokens is None:
        return None
    prompt = usage.prompt_tokens_details or PromptDetails()
    details = {"cached_tokens": prompt.cached_tokens or 0, "cache_write_tokens": prompt.created_cache_tokens or 0}
    reasoning = usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else None
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
