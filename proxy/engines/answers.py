"""Chat and raw completion answers as the engines write them, read into ``Tokens``.

Owns the shapes that vLLM, SGLang and llama.cpp write: ids beside the text or once for the whole answer, log probs
under ``content``, prompt ids at the top or per choice. It must not know which engine it reads, nor repair anything:
what is missing stays missing. The one non-obvious fact: a chunk may hold several tokens, or tokens and no text, so
ids are never told from text.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
import numpy as np

from forge.proxy.engines import extras
from forge.proxy.engines.base import Tokens
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.engines.shapes import (
    Answer,
    Choice,
    MetaInfo,
    Span,
    TokenLogProb,
    Usage,
    decode,
    decode_stream,
)
from forge.proxy.engines.tool_calls import CallParts, InOrder
from forge.proxy.splice import UNREADABLE
from forge.proxy.sse import EventTooLarge, Splitter
from forge.storage.records import Ids, LogProbs, empty_ids

MINUS_INFINITY: Final = -9999.0
"""vLLM writes this where it has no log probability, llama.cpp the lowest number there is."""
ABORT: Final = "abort"
"""Finish reason of a generation that the engine gave up."""
_ID_TEXT: Final = re.compile(r"token_id:(\d{1,9})")
"""How older vLLM servers write a token's id in place of its text."""
_T = TypeVar("_T")


def read_whole(body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
    """Raises ``ValueError`` on a body that is no chat completion."""
    try:
        answer = decode(body, prompts)
    except UNREADABLE as failure:
        raise ValueError(f"not a chat completion: {failure}") from failure
    if answer.choices is None and answer.error is None:
        raise ValueError("not a chat completion: it has no choices")
    return _merge([answer])


def read_stream(body: bytes, prompts: PromptIds | None = None) -> list[Tokens]:
    """From raw SSE bytes; what comes after an unreadable event is left out. Raises ``ValueError`` if nothing is."""
    answers = decode_stream(body, prompts) or _one_by_one(body)
    if not answers:
        raise ValueError("not a chat completion stream: it has no events")
    return _merge(answers)


def _one_by_one(body: bytes) -> list[Answer]:
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
            answers.append(decode(event.data))
        except UNREADABLE:
            break
    return answers


class _Parts:
    """One choice, from its chunks."""

    def __init__(self, chunks: Sequence[Choice] = ()) -> None:
        # Where a generation that was given up goes on, what came with the giving up is said again.
        told = [chunk for chunk in chunks if chunk.finish_reason != ABORT or chunk is chunks[-1]]
        ids = [chunk.token_ids or chunk.response_token_ids for chunk in told]
        self.ids = [some for some in ids if some is not None]
        """Of each chunk."""
        self.log_probs = [chunk.logprobs.entries() for chunk in told if chunk.logprobs is not None]
        self.prompt_ids = _last([chunk.prompt_token_ids for chunk in chunks])
        self.spans: list[Span] | None = None
        self.finish = _last([chunk.finish_reason for chunk in chunks])
        self.texts: dict[str, list[str]] = {}
        self.calls: dict[int, CallParts] = {}
        metas = [chunk.meta_info for chunk in told if chunk.meta_info is not None]
        self.experts = _last([*(chunk.routed_experts for chunk in told), *(meta.routed_experts for meta in metas)])
        self.mask = _last([meta.output_token_sampling_mask for meta in metas])
        self.prompt_scores = _last([chunk.prompt_logprobs for chunk in told])
        for chunk in chunks:
            if chunk.weight_versions:
                self._add_spans(chunk.weight_versions)
            if chunk.meta_info is not None:
                self._add_meta(chunk, chunk.meta_info)
        self._add_texts(told)

    def _add_spans(self, spans: list[Span]) -> None:
        """Those of a generation that goes on follow those that it had."""
        follow = self.spans is not None and spans[0].start == self.spans[-1].end
        self.spans = [*(self.spans or ()), *spans] if follow else spans

    def _add_meta(self, chunk: Choice, meta: MetaInfo) -> None:
        self.spans = meta.weight_versions or self.spans
        entries = meta.output_token_logprobs or ()
        if entries and (chunk.logprobs is None or not chunk.logprobs.content):
            self.log_probs.append([TokenLogProb(text, p, id=token) for p, token, text in entries])

    def _add_texts(self, chunks: Sequence[Choice]) -> None:
        messages = [message for chunk in chunks if (message := chunk.message or chunk.delta) is not None]
        said = {
            "content": [chunk.text for chunk in chunks] + [message.content for message in messages],
            "reasoning": [m.reasoning_content if m.reasoning is None else m.reasoning for m in messages],
            "refusal": [message.refusal for message in messages],
        }
        self.texts = {name: some for name, texts in said.items() if (some := [t for t in texts if t is not None])}
        order = InOrder()
        for message in messages:
            for call in order.placed(message.tool_calls or ()):
                self.calls.setdefault(call.index or 0, CallParts()).add(call)

    def settled(self, count: int | None) -> tuple[list[int], list[TokenLogProb]]:
        """Ids and log probs of the whole choice, of which the engine counts ``count`` tokens if it does."""
        log_probs = joined(self.log_probs, count)
        ids = joined(self.ids, count) or _ids_of(log_probs)
        # A raw completion that was asked to echo scores its prompt too: those are no log probs of what was sampled.
        prompt = len(self.prompt_ids or ())
        if prompt and len(log_probs) == prompt + len(ids):
            log_probs = log_probs[prompt:]
        return ids, log_probs

    def message(self) -> dict[str, Any]:
        calls = [self.calls[index].told() for index in sorted(self.calls)]
        texts = {name: "".join(pieces) for name, pieces in self.texts.items()}
        content = texts.get("content")
        if not content and calls:
            content = None
        extra = {name: texts[name] for name in ("reasoning", "refusal") if texts.get(name)}
        return {"role": "assistant", "content": content} | extra | ({"tool_calls": calls} if calls else {})


def _last(values: Sequence[_T | None]) -> _T | None:
    """The last one that says something."""
    return next((value for value in reversed(values) if value), None)


def joined(chunks: list[list[_T]], count: int | None) -> list[_T]:
    """Chunks one behind the other; of a stream whose every chunk says again what came before, the last one: told by
    the engine's count."""
    if len(chunks) == 1:
        return chunks[0]
    again = len(chunks) > 1 and sum(map(len, chunks)) != count == len(chunks[-1])
    if again and all(chunk == chunks[-1][: len(chunk)] for chunk in chunks):
        return chunks[-1]
    return [one for chunk in chunks for one in chunk]


def _ids_of(log_probs: list[TokenLogProb]) -> list[int]:
    """From entries that name their token's id, where all do."""
    named = [entry.id for entry in log_probs]
    if None in named:
        found = [_ID_TEXT.fullmatch(entry.token or "") for entry in log_probs]
        named = [int(match[1]) if match is not None else None for match in found]
    return [] if None in named else [token for token in named if token is not None]


def _merge(answers: Sequence[Answer]) -> list[Tokens]:
    model = _last([answer.model for answer in answers])
    usage = _last([answer.usage for answer in answers])
    error = next((error_text(answer.error) for answer in reversed(answers) if answer.error is not None), None)
    extensions = [answer.sglext for answer in answers if answer.sglext is not None]
    once = _last([extension.output_ids for extension in extensions])
    inputs = [extension.input_ids for extension in extensions]
    prompt_ids = _last([*(answer.prompt_token_ids for answer in answers), *inputs])
    metadata = _last([answer.metadata for answer in answers])
    spans = metadata.weight_versions if metadata is not None else None
    chunks: dict[int, list[Choice]] = {}
    for choice in [choice for answer in answers for choice in answer.choices or ()]:
        chunks.setdefault(choice.index, []).append(choice)
    said = bool(chunks)
    parts = {index: _Parts(some) for index, some in chunks.items()} or {0: _Parts()}
    if len(parts) == 1:
        only = parts[min(parts)]
        only.spans = only.spans or spans
        only.experts = only.experts or _last([extension.routed_experts for extension in extensions])
        only.prompt_scores = only.prompt_scores or _last([answer.prompt_logprobs for answer in answers])
    for index, ids in enumerate(once or ()):
        if index in parts:
            parts[index].ids = [ids]
    return [
        _tokens(part, said=said, model=model, usage=usage, prompt_ids=prompt_ids, error=error, parts=parts.values())
        for _, part in sorted(parts.items())
    ]


def _tokens(
    part: _Parts,
    *,
    said: bool,
    model: str | None,
    usage: Usage | None,
    prompt_ids: Sequence[int] | None,
    error: str | None,
    parts: Collection[_Parts],
) -> Tokens:
    count = usage.completion_tokens if usage else None
    ids, log_probs = part.settled(count if len(parts) == 1 else None)
    prompt, output = _ids(part.prompt_ids or prompt_ids), _ids(ids)
    return Tokens(
        prompt_ids=prompt,
        output_ids=output,
        output_log_probs=_log_probs(log_probs),
        prompt_tokens=_prompt_tokens(part, parts, usage),
        completion_tokens=count,
        finish_reason=part.finish,
        message=part.message() if said else {},
        model=model,
        version_spans=_spans(part.spans),
        top_logprobs=_top(log_probs),
        prompt_log_probs=extras.prompt_log_probs(part.prompt_scores, prompt),
        routed_experts=extras.routed_experts(part.experts, len(prompt) + len(output)),
        sampling_mask=extras.sampling_mask(part.mask, output),
        error=error,
        pieces=_pieces(log_probs),
    )


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


def _ids(ids: Sequence[int] | None) -> Ids:
    if not ids:
        return empty_ids()
    if isinstance(ids, memoryview):
        return np.frombuffer(ids, dtype=np.int32)
    try:
        return np.frombuffer(array("i", ids), dtype=np.int32)
    except OverflowError as failure:
        raise ValueError(f"a token id is no 32-bit number: {failure}") from failure


def _log_probs(entries: list[TokenLogProb]) -> LogProbs:
    """NaN for null and for the engine's stand-in for it: a missing log probability is never a number."""
    told = [entry.logprob for entry in entries]
    try:
        values = np.frombuffer(array("d", cast("list[float]", told)))
    except TypeError:
        values = np.array(told, dtype=np.float64)  # null becomes NaN
    missing = values <= MINUS_INFINITY
    if missing.any():
        values[missing] = np.nan
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _pieces(entries: list[TokenLogProb]) -> list[str] | None:
    """None where a token's text is missing, or is a fragment of a character or the name of a byte."""
    texts = cast("list[str]", [entry.token for entry in entries])
    try:
        text = "".join(texts)
    except TypeError:
        return None
    return None if not texts or "\ufffd" in text or "<0x" in text or _ID_TEXT.match(text) else texts


def _spans(spans: list[Span] | None) -> list[tuple[int, int, int]] | None:
    """None where the versions are names: only numbers can be ordered."""
    if not spans:
        return None
    try:
        return [(int(span.version), span.start, span.end) for span in spans]
    except ValueError:
        return None


def _top(entries: list[TokenLogProb]) -> str | None:
    tops = [entry.top_logprobs for entry in entries]
    return msgspec.json.encode([top or [] for top in tops]).decode() if any(tops) else None
