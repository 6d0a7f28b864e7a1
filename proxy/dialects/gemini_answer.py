"""The engine's chat answer as Gemini's: chunks of parts as they are made, and one whole response.

Owns what a part is: text and thoughts go out piece by piece, a call whole, because its arguments are an object here.
It must not know sockets or engines. The one non-obvious fact: arguments that are no object cannot be said in this
format; they are never repaired, but named in ``finishMessage`` under the finish reason that is made for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import Hold, Piece
from forge.proxy.dialects.gemini_errors import error_body
from forge.proxy.dialects.gemini_framing import BLANK, Framing
from forge.proxy.dialects.gemini_signature import sign
from forge.proxy.dialects.translated import Usage
from forge.proxy.engines.shapes import Message, ToolCall

FINISHES: Final = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
OTHER: Final = "OTHER"
MALFORMED: Final = "MALFORMED_FUNCTION_CALL"
CALL_ID_LEN: Final = 40
"""Longest call id that is handed on."""
Part = dict[str, Any]


@dataclass(slots=True)
class _Call:
    """A call as it grows."""

    call_id: str
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class GeminiComposer:
    """A ``Composer`` of the Gemini format."""

    def __init__(self, framing: Framing, *, call_id: str, model: str | None, thoughts: bool) -> None:
        self._framing = framing
        self._call_id = call_id
        self._about = {"modelVersion": model or "", "responseId": call_id}
        self._shows_thoughts = thoughts
        self._unsigned: list[str] = []
        """Reasoning that no signature holds yet."""
        self._parts: list[Part] = []
        self._texts: list[str] = []
        """Of the last part, piece by piece, while it grows."""
        self._calls: dict[int, _Call] = {}
        self._call: _Call | None = None
        self._malformed: list[str] = []
        self._finish = ""
        self._pieces: list[Piece] = []
        self.final: dict[str, Any] | None = None
        """The whole response, once the answer has ended."""

    def pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def start(self, prompt_tokens: int | None) -> None:
        if self._framing.opens:
            self._emit(self._chunk({"text": ""}))

    def take(self, delta: Message) -> None:
        """Raises ``ValueError`` on a piece of a call that has ended."""
        before = len(self._pieces)
        reasoning = delta.reasoning if delta.reasoning is not None else delta.reasoning_content
        if reasoning:
            self._end_call()
            self._unsigned.append(reasoning)
            if self._shows_thoughts:
                self._part({"text": reasoning, "thought": True})
        if text := delta.content or delta.refusal:
            self._end_call()
            self._part({"text": text} | self._signature())
        for place, call in enumerate(delta.tool_calls or ()):
            self._grow(call.index if call.index is not None else place, call)
        if len(self._pieces) == before and (reasoning or delta.tool_calls):
            # Hidden thoughts and growing arguments can take minutes: their client must not think that nothing comes.
            self._pieces.append(Piece(BLANK))

    def settle(self, finish: str, matched: str | None) -> None:
        self._end_call()
        self._finish = finish

    def end(self, usage: Usage | None) -> None:
        last: Part = {"text": ""} | self._signature()
        if len(last) > 1 or not self._parts:
            self._add(last)
        self._join()
        told = self._told()
        about = self._about | _usage(usage)
        self.final = _response(self._parts, told) | about
        self._emit(_response([last], told) | about, Hold.CLOSE, last=True)

    def fail(self, code: str, message: str) -> None:
        body = error_body(500, code=code, message=message)
        self._pieces.append(Piece(self._framing.error(body, begun=True), Hold.CLOSE))

    def _grow(self, index: int, delta: ToolCall) -> None:
        call = self._calls.get(index)
        if call is None:
            self._end_call()
            taken = {call.call_id for call in self._calls.values()}
            usable = delta.id is not None and 0 < len(delta.id) <= CALL_ID_LEN and delta.id not in taken
            call = _Call(str(delta.id) if usable else f"call_{self._call_id}_{len(self._calls)}")
            self._calls[index] = self._call = call
        elif call is not self._call:
            raise ValueError("the policy server went back to a tool call it had left")
        if delta.function is not None:
            call.name += delta.function.name or ""
            call.arguments.append(delta.function.arguments or "")

    def _end_call(self) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        text = "".join(call.arguments)
        arguments = _object(text)
        if arguments is None:
            self._malformed.append(f"{call.name}({text})")
            return
        part = {"functionCall": {"name": call.name, "args": arguments, "id": call.call_id}}
        self._part(part | self._signature(), Hold.DATA)

    def _signature(self) -> Part:
        """On the first part behind the reasoning, where every client keeps it."""
        reasoning, self._unsigned = "".join(self._unsigned), []
        return {"thoughtSignature": sign(reasoning)} if reasoning else {}

    def _told(self) -> dict[str, Any]:
        """How it ended."""
        reason = FINISHES.get(self._finish, OTHER)
        if not self._malformed:
            return {"finishReason": reason}
        message = "Malformed function call: " + "; ".join(self._malformed)
        return {"finishReason": MALFORMED if reason == "STOP" else reason, "finishMessage": message}

    def _part(self, part: Part, hold: Hold = Hold.NOTHING) -> None:
        if self._parts and _goes_on(self._parts[-1], part):
            self._texts.append(part["text"])
        else:
            self._add(part)
        self._emit(self._chunk(part), hold)

    def _add(self, part: Part) -> None:
        self._join()
        self._parts.append(part)

    def _join(self) -> None:
        """The last part has all its text."""
        if self._texts:
            self._parts[-1] = self._parts[-1] | {"text": self._parts[-1]["text"] + "".join(self._texts)}
            self._texts = []

    def _chunk(self, part: Part) -> dict[str, Any]:
        return _response([part], {}) | self._about

    def _emit(self, response: dict[str, Any], hold: Hold = Hold.NOTHING, *, last: bool = False) -> None:
        self._pieces.append(Piece(self._framing.event(msgspec.json.encode(response), last=last), hold))


def _response(parts: list[Part], told: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": parts, "role": "model"}, **told, "index": 0}]}


def _goes_on(before: Part, part: Part) -> bool:
    """Whether both are text of one kind, and nothing new begins."""
    alike = "text" in before and "text" in part and before.get("thought") == part.get("thought")
    return alike and "thoughtSignature" not in part


def _object(text: str) -> Raw | None:
    """The arguments as the engine wrote them, on one line; None if they are no object."""
    if not text.strip():
        return Raw(b"{}")
    try:
        splice.members(text.encode())
        return Raw(msgspec.json.format(text.encode(), indent=-1))
    except (*splice.UNREADABLE, UnicodeEncodeError):
        return None


def _usage(usage: Usage | None) -> dict[str, Any]:
    """The engine's own counts: harnesses compact by them. Nothing where it gave none."""
    if usage is None or usage.completion_tokens is None:
        return {}
    details = usage.completion_tokens_details
    thoughts = (details.reasoning_tokens if details is not None else None) or 0
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details is not None else None
    counts: dict[str, int] = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens - thoughts,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }
    if thoughts:
        counts["thoughtsTokenCount"] = thoughts
    if cached:
        counts["cachedContentTokenCount"] = cached
    return {"usageMetadata": counts}
