"""What engines write, as structs: one body or one chunk of a chat or raw completion, in every engine's words.

Owns which members are looked at, and the parsing of one document. The one non-obvious fact: engines in Python may
write ``-Infinity`` or ``NaN`` for a log prob, which is no JSON: it is read as null.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from forge.proxy.splice import UNREADABLE


class Alternative(msgspec.Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogProb(msgspec.Struct):
    logprob: float | None = None
    top_logprobs: list[Alternative] | None = None
    token: str | None = None
    id: int | None = None
    """llama.cpp's."""


class ChoiceLogProbs(msgspec.Struct):
    """Chat says ``content``; a raw completion says the rest."""

    content: list[TokenLogProb] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def entries(self) -> list[TokenLogProb]:
        tops = self.top_logprobs or ()
        named = [[Alternative(token, p) for token, p in (top or {}).items()] for top in tops]
        texts = self.tokens or ()
        raw = [
            TokenLogProb(p, named[place] if place < len(named) else None, texts[place] if place < len(texts) else None)
            for place, p in enumerate(self.token_logprobs or ())
        ]
        return [*(self.content or ()), *raw]


class Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    id: str | None = None
    type: str | None = None
    index: int | None = None
    function: Function | None = None


class Message(msgspec.Struct):
    """A message, or the delta of one."""

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Span(msgspec.Struct):
    version: str | int
    start: int
    end: int


class MetaInfo(msgspec.Struct):
    """SGLang's, of a whole answer."""

    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_versions: list[Span] | None = None


class Extension(msgspec.Struct):
    """SGLang's, of an answer: in a stream, a chunk of its own."""

    input_ids: list[int] | None = None
    output_ids: list[list[int]] | None = None
    """One list for each choice."""


class Metadata(msgspec.Struct):
    """SGLang's, of a whole answer: the versions of its first choice."""

    weight_versions: list[Span] | None = None


class Choice(msgspec.Struct):
    index: int = 0
    message: Message | None = None
    delta: Message | None = None
    text: str | None = None
    """Of a raw completion."""
    logprobs: ChoiceLogProbs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    response_token_ids: list[int] | None = None
    """SGLang's name."""
    prompt_token_ids: list[int] | None = None
    weight_versions: list[Span] | None = None
    meta_info: MetaInfo | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Answer(msgspec.Struct):
    """A whole body, or one chunk of a stream."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    sglext: Extension | None = None
    metadata: Metadata | None = None
    error: Any = None


_answer: Final = msgspec.json.Decoder(Answer)
_NO_NUMBER: Final = re.compile(rb"(?<=[:\[,])(\s*)(?:-?Infinity|NaN)(?=\s*[,}\]])")
"""Python writes these; they are no JSON."""


def decode(document: bytes) -> Answer:
    """Raises one of ``UNREADABLE``."""
    try:
        return _answer.decode(document)
    except UNREADABLE:
        mended = _NO_NUMBER.sub(rb"\1null", document)
        if mended == document:
            raise
        return _answer.decode(mended)
