"""The messages wire format, which Claude Code speaks: translated to chat and back, event by event as the engine makes
them.

Owns this format's keepalive and what counts its tokens; requests are ``messages_request``'s, events
``messages_answer``'s, errors ``messages_errors``'. The one non-obvious fact: headers do not reach it, so a beta that
nobody here knows can change nothing.
"""

from __future__ import annotations

import msgspec

from forge.proxy.dialects.base import NO_TARGET, Answer, Outgoing, Overrides, Target
from forge.proxy.dialects.messages_answer import MessageComposer
from forge.proxy.dialects.messages_errors import engine_error_body, error_body, error_event
from forge.proxy.dialects.messages_request import Translated, translate
from forge.proxy.dialects.translated import Streamed, Whole, prepared
from forge.proxy.engines.base import Engine
from forge.proxy.sessions.turns import Request


class Messages:
    name: str = "messages"
    keepalive: bytes = b'event: ping\ndata: {"type":"ping"}\n\n'
    content_type_stream: str = "text/event-stream; charset=utf-8"
    passes_break: bool = True

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        return prepared(body, translate(body), engine=engine, overrides=overrides)

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        translated: Translated = outgoing.context
        composer = MessageComposer(call_id=call_id, model=outgoing.model_requested, stops=translated.stops)
        return Streamed(composer) if outgoing.stream else Whole(composer, lambda message: error_body(502, message))

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        return error_body(status, message)

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        return engine_error_body(status, body)

    def stream_error(self, *, code: str, message: str, begun: bool = True) -> bytes:
        return error_event(code, message)

    def counted(self, tokens: int) -> bytes:
        """The answer to a request to count tokens."""
        return msgspec.json.encode({"input_tokens": tokens})
