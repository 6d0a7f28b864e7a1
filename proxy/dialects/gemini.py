"""The Gemini wire format: translated to chat and back, part by part as the engine makes them.

Owns what is common to its requests and answers; requests are ``gemini_request``'s, chunks ``gemini_answer``'s. The one
non-obvious fact: whether a stream is one of events or one growing array stands in the query, so there are two of it.
"""

from __future__ import annotations

import msgspec

from forge.proxy import splice
from forge.proxy.dialects.base import NO_TARGET, Answer, BadRequest, Outgoing, Overrides, Target
from forge.proxy.dialects.chat import prepare
from forge.proxy.dialects.engine_errors import read_error
from forge.proxy.dialects.gemini_answer import GeminiComposer
from forge.proxy.dialects.gemini_errors import engine_error_body, error_body
from forge.proxy.dialects.gemini_framing import BLANK, Array, Events
from forge.proxy.dialects.gemini_request import Translated, translate
from forge.proxy.dialects.translated import Streamed, Whole
from forge.proxy.engines.base import Engine
from forge.proxy.sessions.turns import Request, asked_of


class Gemini:
    name: str = "gemini"
    keepalive: bytes = BLANK
    passes_break: bool = False

    def __init__(self, framing: type[Events] | type[Array] = Events) -> None:
        self._framing = framing
        self.content_type_stream = framing.content_type

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        try:
            translated = translate(body if isinstance(body, bytes) else body.body, target)
        except RecursionError as failure:
            raise BadRequest("`contents` or a schema is nested too deeply to be read") from failure
        outgoing = prepare(
            asked_of(splice.rebuild(translated.members)),
            engine=engine,
            overrides=overrides,
            stream=target.stream,
            notices=translated.notices,
        )
        return msgspec.structs.replace(outgoing, edited=True, context=translated, shared=None)

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        translated: Translated = outgoing.context
        composer = GeminiComposer(
            self._framing(), call_id=call_id, model=outgoing.model_requested, thoughts=translated.thoughts
        )
        return Streamed(composer) if outgoing.stream else Whole(composer, _server_error)

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        return error_body(status, code=code, message=message, param=param)

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        return engine_error_body(status, read_error(status, body))

    def stream_error(self, *, code: str, message: str, begun: bool = True) -> bytes:
        return self._framing().error(error_body(503, code=code, message=message), begun=begun)

    def counted(self, tokens: int) -> bytes:
        """The answer to a request to count tokens."""
        return msgspec.json.encode({"totalTokens": tokens})


def _server_error(message: str) -> bytes:
    return error_body(502, code="server_error", message=message)
