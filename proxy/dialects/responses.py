"""The responses wire format, which Codex speaks: translated to chat and back, event by event as the engine makes them.

Owns this format's errors and its keepalive; requests are ``responses_request``'s, events ``responses_answer``'s.
"""

from __future__ import annotations

from typing import Final

import msgspec

from forge.proxy.dialects.base import NO_TARGET, Answer, Outgoing, Overrides, Target
from forge.proxy.dialects.chat_answer import error_body
from forge.proxy.dialects.engine_errors import read_error
from forge.proxy.dialects.responses_answer import ResponseComposer
from forge.proxy.dialects.responses_request import Translated, translate
from forge.proxy.dialects.translated import Streamed, Whole, prepared
from forge.proxy.engines.base import Engine
from forge.proxy.sessions.turns import Request

OVERFLOW_CODE: Final = "context_length_exceeded"


class Responses:
    name: str = "responses"
    keepalive: bytes = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'
    """Codex's idle limit does not count comments."""
    content_type_stream: str = "text/event-stream; charset=utf-8"
    passes_break: bool = False

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        return prepared(body, translate(body), engine=engine, overrides=overrides)

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        translated: Translated = outgoing.context
        composer = ResponseComposer(translated, call_id=call_id, created=created, model=outgoing.model_requested)
        return Streamed(composer) if outgoing.stream else Whole(composer, _server_error)

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        return error_body(code=code, message=message, param=param)

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        error = read_error(status, body)
        code = OVERFLOW_CODE if error.overflow else error.kind
        told = {"message": error.message, "type": error.kind, "param": error.param, "code": code}
        return msgspec.json.encode({"error": told})

    def stream_error(self, *, code: str, message: str, begun: bool = True) -> bytes:
        response = {"id": "resp_error", "object": "response", "created_at": 0, "model": "", "status": "failed"}
        rest = {"output": [], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
        failed = response | rest | {"error": {"code": code, "message": message}}
        event = {"type": "response.failed", "sequence_number": 0, "response": failed}
        return b"event: response.failed\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _server_error(message: str) -> bytes:
    return error_body(code="server_error", message=message)
