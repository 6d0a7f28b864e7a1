"""The responses wire format, which Codex speaks: translated to chat and back, event by event as the engine makes them.

Owns the two lanes of an answer (streamed, whole) and this format's errors; requests are ``responses_request``'s,
events ``responses_answer``'s. The one non-obvious fact: the harness asks for nothing of the engine itself, so an
answer needs no cutting: only what has a place in a response is taken over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from forge.proxy import splice
from forge.proxy.dialects.base import Answer, Hold, Outgoing, Overrides, Piece
from forge.proxy.dialects.chat import BROKEN_OFF, DONE, error_body, last_event, prepare
from forge.proxy.dialects.hints import field_hints
from forge.proxy.dialects.responses_answer import ABORT, Composer, Usage
from forge.proxy.dialects.responses_request import Translated, translate
from forge.proxy.engines.answers import Message, as_stream, error_text
from forge.proxy.engines.base import Engine
from forge.proxy.sse import EventTooLarge, Splitter

OVERFLOW: Final = re.compile(r"context.{0,12} length|max_model_len|context window|too many tokens", re.IGNORECASE)
"""How engines say that a prompt is too long."""
OVERFLOW_CODE: Final = "context_length_exceeded"
ABORTED: Final = "the policy server aborted this generation; ask again"


class Responses:
    name: str = "responses"
    keepalive: bytes = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    """Codex's idle limit does not count comments."""
    content_type_stream: str = "text/event-stream; charset=utf-8"

    def request(self, body: bytes, *, engine: Engine, overrides: Overrides, call_id: str) -> Outgoing:
        translated = translate(body)
        chat = splice.rebuild(translated.members)
        outgoing = prepare(
            chat,
            translated.members,
            engine=engine,
            overrides=overrides,
            stream=translated.stream,
            notices=translated.notices,
        )
        hints = {**outgoing.hints, **field_hints(splice.members(body))}
        return replace(outgoing, edited=True, hints=hints, context=translated)

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        translated: Translated = outgoing.context
        composer = Composer(translated, call_id=call_id, created=created, model=outgoing.model_requested)
        return Streamed(composer) if outgoing.stream else Whole(composer)

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        return error_body(code=code, message=message, param=param)

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        message, kind, param = _read_error(body)
        code = OVERFLOW_CODE if status == 400 and OVERFLOW.search(message) else kind
        return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})

    def stream_error(self, *, code: str, message: str) -> bytes:
        response = {"id": "resp_error", "object": "response", "created_at": 0, "model": "", "status": "failed"}
        rest = {"output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        failed = response | rest | {"error": {"code": code, "message": message}}
        event = {"type": "response.failed", "sequence_number": 0, "response": failed}
        return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _read_error(body: bytes) -> tuple[str, str, str | None]:
    """The engine's message, type and param; a body in no known shape is itself the message."""
    try:
        error: Any = msgspec.json.decode(body, type=dict[str, Any]).get("error")
    except splice.UNREADABLE:
        return body.decode("utf-8", "replace").strip(), "upstream_error", None
    if not isinstance(error, dict):
        return error_text(error) if error else body.decode("utf-8", "replace"), "upstream_error", None
    kind, param = error.get("type"), error.get("param")
    kind = kind if isinstance(kind, str) else "upstream_error"
    return error_text(error), kind, param if isinstance(param, str) else None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: Message | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    """One chunk of the engine's stream; ids and log probs are skipped unread."""

    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_chunk: Final = msgspec.json.Decoder(_Chunk)


class Streamed:
    """Each event goes out as soon as the engine has said enough for it."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._splitter = Splitter()
        self._usage: Usage | None = None
        self._started = False
        self.finish_reason: str | None = None
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        return self.finish_reason is not None and self.error is None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        try:
            for event in self._splitter.feed(chunk) if self.error is None else ():
                self._take(event.data)
        except EventTooLarge as failure:
            self._fail(str(failure))
        return self._composer.pieces()

    def finish(self) -> Sequence[Piece]:
        if self.error is None:
            self._take_rest()
        if self.error is None and self.finish_reason is None:
            self._fail(BROKEN_OFF)
        elif self.error is None and self.finish_reason == ABORT:
            self._composer.fail("server_error", ABORTED)
        elif self.error is None and self.finish_reason is not None:
            self._composer.end(self.finish_reason, self._usage)
        return self._composer.pieces()

    def _take_rest(self) -> None:
        """The end of a stream without its last empty line, or a whole body where a stream was due."""
        rest = self._splitter.rest
        if rest.lstrip().startswith(b"{"):
            self.take_whole(rest)
        elif self.finish_reason is None and (last := last_event(self._splitter)) is not None:
            self._take(last.data)

    def take_whole(self, body: bytes) -> None:
        try:
            for event in Splitter().feed(as_stream(body)):
                self._take(event.data)
        except (ValueError, EventTooLarge) as failure:
            self._fail(str(failure))

    def _take(self, data: bytes | None) -> None:
        if not data or data == DONE or self.error is not None:
            return
        if not self._started:
            self._started = True
            self._composer.start()
        try:
            chunk = _chunk.decode(data)
            if chunk.error is not None:
                self._fail(error_text(chunk.error))
                return
            self._usage = chunk.usage or self._usage
            for choice in chunk.choices or ():
                self._take_choice(choice)
        except (*splice.UNREADABLE, ValueError) as failure:
            self._fail(f"the policy server's answer cannot be read: {failure}")

    def _take_choice(self, choice: _Choice) -> None:
        if choice.index != 0 or self.finish_reason is not None:
            return
        if choice.delta is not None:
            self._composer.take(choice.delta)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
            self._composer.settle(choice.finish_reason)

    def _fail(self, message: str) -> None:
        if not self._started:
            self._started = True
            self._composer.start()
        self.error = message
        self._composer.fail("server_error", message)


class Whole:
    """The final object of the same events, held entire; an error body where the answer cannot be one."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._streamed = Streamed(composer)
        self._chunks: list[bytes] = []

    @property
    def complete(self) -> bool:
        return self._streamed.complete

    @property
    def finish_reason(self) -> str | None:
        return self._streamed.finish_reason

    @property
    def error(self) -> str | None:
        return self._streamed.error

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        self._chunks.append(chunk)
        return ()

    def finish(self) -> Sequence[Piece]:
        self._streamed.take_whole(b"".join(self._chunks))
        self._streamed.finish()
        if self.error is not None:
            return (Piece(error_body(code="server_error", message=self.error), Hold.CLOSE),)
        return (Piece(msgspec.json.encode(self._composer.final), Hold.CLOSE),)
