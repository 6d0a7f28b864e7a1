"""Chat and raw completion answers as the engines write them, read into ``Tokens``.

Owns the shape that vLLM set and others follow: ids beside the text, log probs under ``content``, prompt ids at the
top or per choice. It must not know which engine it reads, nor repair anything: what is missing stays missing. The
one non-obvious fact: a chunk may hold several tokens, or tokens and no text, so ids are never told from text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec
import numpy as np

from forge.proxy.engines.base import Tokens
from forge.proxy.splice import UNREADABLE
from forge.proxy.sse import EventTooLarge, Splitter
from forge.storage.records import Ids, LogProbs, empty_ids

MINUS_INFINITY: Final = -9999.0
"""vLLM writes this where it has no log probability."""


class Alternative(msgspec.Struct):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogProb(msgspec.Struct):
    logprob: float | None = None
    top_logprobs: list[Alternative] | None = None


class ChoiceLogProbs(msgspec.Struct):
    """Chat says ``content``; a raw completion says the rest."""

    content: list[TokenLogProb] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def entries(self) -> list[TokenLogProb]:
        tops = self.top_logprobs or ()
        named = [[Alternative(token, p) for token, p in (top or {}).items()] for top in tops]
        raw = [
            TokenLogProb(p, named[place] if place < len(named) else None)
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


class Choice(msgspec.Struct):
    index: int = 0
    message: Message | None = None
    delta: Message | None = None
    text: str | None = None
    """Of a raw completion."""
    logprobs: ChoiceLogProbs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    weight_versions: list[Span] | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Answer(msgspec.Struct):
    """A whole body, or one chunk of a stream."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


_decoder: Final = msgspec.json.Decoder(Answer)


def read_whole(body: bytes) -> list[Tokens]:
    """Raises ``ValueError`` on a body that is no chat completion."""
    try:
        answer = _decoder.decode(body)
    except UNREADABLE as failure:
        raise ValueError(f"not a chat completion: {failure}") from failure
    if answer.choices is None and answer.error is None:
        raise ValueError("not a chat completion: it has no choices")
    return _merge([answer])


def read_stream(body: bytes) -> list[Tokens]:
    """From raw SSE bytes; what comes after an unreadable event is left out. Raises ``ValueError`` if nothing is."""
    answers: list[Answer] = []
    splitter = Splitter()
    try:
        events = splitter.feed(body)
    except EventTooLarge as failure:
        raise ValueError(str(failure)) from failure
    for event in [*events, splitter.last()]:
        if event is None or not event.data or event.data == b"[DONE]":
            continue
        try:
            answers.append(_decoder.decode(event.data))
        except UNREADABLE:
            break
    if not answers:
        raise ValueError("not a chat completion stream: it has no events")
    return _merge(answers)


class _CallParts:
    """One tool call as it grows."""

    def __init__(self) -> None:
        self.id: str | None = None
        self.name: list[str] = []
        self.arguments: list[str] = []

    def told(self) -> dict[str, Any]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


class _Parts:
    """One choice as it grows."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.log_probs: list[TokenLogProb] = []
        self.prompt_ids: list[int] | None = None
        self.spans: list[Span] | None = None
        self.finish: str | None = None
        self.texts: dict[str, list[str]] = {}
        self.calls: dict[int, _CallParts] = {}

    def add(self, choice: Choice) -> None:
        self.ids += choice.token_ids or ()
        if choice.logprobs is not None:
            self.log_probs += choice.logprobs.entries()
        self.prompt_ids = choice.prompt_token_ids or self.prompt_ids
        self.spans = choice.weight_versions or self.spans
        self.finish = choice.finish_reason or self.finish
        if choice.text is not None:
            self.texts.setdefault("content", []).append(choice.text)
        message = choice.message or choice.delta
        if message is None:
            return
        reasoning = message.reasoning if message.reasoning is not None else message.reasoning_content
        for name, text in (("content", message.content), ("reasoning", reasoning), ("refusal", message.refusal)):
            if text is not None:
                self.texts.setdefault(name, []).append(text)
        for place, call in enumerate(message.tool_calls or ()):
            self._add_call(call.index if call.index is not None else place, call)

    def leave_echo(self) -> None:
        """A raw completion that was asked to echo scores its prompt too: those are no log probs of what was sampled."""
        prompt = len(self.prompt_ids or ())
        if prompt and len(self.log_probs) == prompt + len(self.ids):
            del self.log_probs[:prompt]

    def _add_call(self, index: int, part: ToolCall) -> None:
        call = self.calls.setdefault(index, _CallParts())
        call.id = part.id or call.id
        if part.function is not None:
            call.name.append(part.function.name or "")
            call.arguments.append(part.function.arguments or "")

    def message(self) -> dict[str, Any]:
        calls = [self.calls[index].told() for index in sorted(self.calls)]
        texts = {name: "".join(pieces) for name, pieces in self.texts.items()}
        content = texts.get("content")
        if not content and calls:
            content = None
        extra = {name: texts[name] for name in ("reasoning", "refusal") if texts.get(name)}
        return {"role": "assistant", "content": content} | extra | ({"tool_calls": calls} if calls else {})


def _merge(answers: Iterable[Answer]) -> list[Tokens]:
    parts: dict[int, _Parts] = {}
    model: str | None = None
    usage: Usage | None = None
    prompt_ids: list[int] | None = None
    error: str | None = None
    for answer in answers:
        model = answer.model or model
        usage = answer.usage or usage
        prompt_ids = answer.prompt_token_ids or prompt_ids
        error = error if answer.error is None else error_text(answer.error)
        for choice in answer.choices or ():
            parts.setdefault(choice.index, _Parts()).add(choice)
    for part in parts.values():
        part.leave_echo()
    said = bool(parts)
    parts = parts or {0: _Parts()}
    return [
        Tokens(
            prompt_ids=_ids(part.prompt_ids or prompt_ids),
            output_ids=_ids(part.ids),
            output_log_probs=_log_probs(part.log_probs),
            prompt_tokens=_prompt_tokens(part, parts.values(), usage),
            completion_tokens=usage.completion_tokens if usage else None,
            finish_reason=part.finish,
            message=part.message() if said else {},
            model=model,
            version_spans=_spans(part.spans),
            top_logprobs=_top(part.log_probs),
            error=error,
        )
        for _, part in sorted(parts.items())
    ]


def _prompt_tokens(part: _Parts, parts: Collection[_Parts], usage: Usage | None) -> int | None:
    """The engine's count. Where a request held several prompts it is their sum: then this choice's own, where the ids
    of all choices bear it out."""
    if usage is None or not usage.prompt_tokens or len(parts) < 2 or not part.prompt_ids:
        return usage.prompt_tokens if usage is not None else None
    ids = sum(len(other.prompt_ids or ()) for other in parts)
    return len(part.prompt_ids) if ids % usage.prompt_tokens == 0 else usage.prompt_tokens


def error_text(error: Any) -> str:
    """The message of an ``error`` member."""
    if isinstance(error, dict) and isinstance(message := error.get("message"), str):
        return message
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def _ids(ids: list[int] | None) -> Ids:
    if not ids:
        return empty_ids()
    try:
        return np.array(ids, dtype=np.int32)
    except OverflowError as failure:
        raise ValueError(f"a token id is no 32-bit number: {failure}") from failure


def _log_probs(entries: list[TokenLogProb]) -> LogProbs:
    """NaN for null and for the engine's stand-in for it: a missing log probability is never a number."""
    values = [np.nan if e.logprob is None or e.logprob <= MINUS_INFINITY else e.logprob for e in entries]
    return np.array(values, dtype=np.float32)


def _spans(spans: list[Span] | None) -> list[tuple[int, int, int]] | None:
    """None where the versions are names: only numbers can be ordered."""
    if not spans:
        return None
    try:
        return [(int(span.version), span.start, span.end) for span in spans]
    except ValueError:
        return None


def _top(entries: list[TokenLogProb]) -> str | None:
    if not any(entry.top_logprobs for entry in entries):
        return None
    return msgspec.json.encode([entry.top_logprobs or [] for entry in entries]).decode()
