"""The engine's chat answer as a message: its events in order, its final object.

Owns the life cycle: the message's start, each block opened, extended and ended before the next one opens, then the
stop reason with the usage, then the stop. It must not know sockets or engines. The non-obvious facts: a client runs a
tool once its block has ended, so that waits for the journal; and the reason to stop is ``tool_use`` whenever there is
a tool to use, whatever word the engine ended with, or the client's loop would end there.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from forge.proxy.dialects.base import Hold, Piece
from forge.proxy.dialects.messages_blocks import ID, ContentBlock, Text, Thinking, ToolUse
from forge.proxy.dialects.messages_errors import error_event
from forge.proxy.dialects.translated import PromptDetails, Usage
from forge.proxy.engines.shapes import Message
from forge.proxy.engines.shapes import ToolCall as CallDelta

REASONS: Final = {"length": "max_tokens", "content_filter": "refusal"}
"""Finish reasons that have words of their own, before anything else."""


class MessageComposer:
    """A ``Composer`` of the messages format."""

    def __init__(self, *, call_id: str, model: str | None, stops: tuple[str, ...]) -> None:
        self._call_id = call_id
        self._stops = stops
        self._head: dict[str, Any] = {
            "id": f"msg_{call_id}",
            "type": "message",
            "role": "assistant",
            "model": model or "",
        }
        self._content: list[dict[str, Any]] = []
        self._block: ContentBlock | None = None
        self._calls: dict[int, ToolUse] = {}
        self._ids: set[str] = set()
        self._pieces: list[Piece] = []
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self.final: dict[str, Any] | None = None

    def pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def start(self, prompt_tokens: int | None) -> None:
        usage = _usage(Usage(prompt_tokens or 0, 0))
        message = {**self._head, "content": [], **self._stop, "usage": usage}
        self._emit("message_start", {"message": message})

    def take(self, delta: Message) -> None:
        """Raises ``ValueError`` on a piece of a call that has ended."""
        reasoning = delta.reasoning if delta.reasoning is not None else delta.reasoning_content
        if reasoning:
            self._more(self._block if isinstance(self._block, Thinking) else self._open(Thinking()), reasoning)
        if text := delta.content or delta.refusal:
            self._more(self._block if isinstance(self._block, Text) else self._open(Text()), text)
        for place, call in enumerate(delta.tool_calls or ()):
            self._call(call.index if call.index is not None else place, call)

    def settle(self, finish: str, matched: str | None) -> None:
        self._close()
        reason = REASONS.get(finish)
        if reason is None:
            reason = "tool_use" if self._calls else "end_turn"
            if reason == "end_turn" and matched in self._stops:
                reason, self._stop["stop_sequence"] = "stop_sequence", matched
        self._stop["stop_reason"] = reason

    def end(self, usage: Usage | None) -> None:
        counts = _usage(usage or Usage())
        self.final = {**self._head, "content": self._content, **self._stop, "usage": counts}
        told = counts if usage is not None else {"output_tokens": 0}
        self._emit("message_delta", {"delta": self._stop, "usage": told}, Hold.CLOSE)
        self._emit("message_stop", {}, Hold.CLOSE)

    def fail(self, code: str, message: str) -> None:
        self.final = {"type": "error", "error": {"type": code, "message": message}}
        self._pieces.append(Piece(error_event(code, message), Hold.CLOSE))

    def _call(self, index: int, delta: CallDelta) -> None:
        name = (delta.function.name if delta.function else None) or ""
        arguments = (delta.function.arguments if delta.function else None) or ""
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = ToolUse(self._tool_id(delta.id), name)
            self._open(call)
        elif call is not self._block:
            raise ValueError("the policy server went back to a tool call it had left")
        if arguments:
            self._more(call, arguments)

    def _tool_id(self, engine_id: str | None) -> str:
        """The engine's own where a client can take it: some templates show it to the model."""
        usable = engine_id is not None and ID.fullmatch(engine_id) and engine_id not in self._ids
        tool_id = engine_id if usable and engine_id else f"toolu_{self._call_id}_{len(self._ids)}"
        self._ids.add(tool_id)
        return tool_id

    def _open(self, block: ContentBlock) -> ContentBlock:
        self._close()
        self._block = block
        self._emit("content_block_start", {"index": len(self._content), "content_block": block.opened()})
        return block

    def _more(self, block: ContentBlock, text: str) -> None:
        self._emit("content_block_delta", {"index": len(self._content), "delta": block.more(text)})

    def _close(self) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        place = len(self._content)
        if (last := block.last()) is not None:
            self._emit("content_block_delta", {"index": place, "delta": last})
        self._content.append(block.object())
        self._emit("content_block_stop", {"index": place}, Hold.DATA if block.acts else Hold.NOTHING)

    def _emit(self, kind: str, members: dict[str, Any], hold: Hold = Hold.NOTHING) -> None:
        data = msgspec.json.encode({"type": kind, **members})
        self._pieces.append(Piece(b"event: " + kind.encode() + b"\ndata: " + data + b"\n\n", hold))


def _usage(usage: Usage) -> dict[str, Any]:
    """The engine's own counts: harnesses compact by them. What the cache gave is not counted as input."""
    details = usage.prompt_tokens_details or PromptDetails()
    read, made = details.cached_tokens or 0, details.created_cache_tokens or 0
    counts: dict[str, Any] = {
        "input_tokens": max(0, usage.prompt_tokens - read - made),
        "cache_creation_input_tokens": made,
        "cache_read_input_tokens": read,
        "output_tokens": usage.completion_tokens or 0,
    }
    output = usage.completion_tokens_details
    if output is not None and output.reasoning_tokens is not None:
        counts["output_tokens_details"] = {"thinking_tokens": output.reasoning_tokens}
    return counts
