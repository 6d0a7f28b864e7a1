"""What engines write, as structs: one body or one chunk of a chat or raw completion, in every engine's words.

Owns which members are looked at, and the parsing of one document. The one non-obvious fact: engines in Python may
write ``-Infinity`` or ``NaN`` for a log prob, which is no JSON: it is read as null.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from forge.proxy.engines.prompt_ids import MARK, Folded, PromptIds, fold
from forge.proxy.splice import UNREADABLE


class _Tree(msgspec.Struct, gc=False):
    """What was parsed has no cycles: the collector need not look at an answer's thousands of members."""


class Alternative(_Tree):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogProb(_Tree):
    """In the order in which engines write it, which the parser looks in first."""

    token: str | None = None
    logprob: float | None = None
    top_logprobs: tuple[Alternative, ...] | None = None
    """A tuple: there is but one empty one, and of lists it would be one for each token."""
    id: int | None = None
    """llama.cpp's."""


class ChoiceLogProbs(_Tree):
    """Chat says ``content``; a raw completion says the rest."""

    content: list[TokenLogProb] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def entries(self) -> list[TokenLogProb]:
        if self.token_logprobs is None:
            return self.content or []
        tops = self.top_logprobs or ()
        named = [tuple(Alternative(token, p) for token, p in (top or {}).items()) for top in tops]
        texts = self.tokens or ()
        raw = [
            TokenLogProb(texts[place] if place < len(texts) else None, p, named[place] if place < len(named) else None)
            for place, p in enumerate(self.token_logprobs or ())
        ]
        return [*(self.content or ()), *raw]


class Function(_Tree):
    name: str | None = None
    arguments: str | None = None


class ToolCall(_Tree):
    id: str | None = None
    type: str | None = None
    index: int | None = None
    function: Function | None = None


class Message(_Tree):
    """A message, or the delta of one."""

    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Span(_Tree):
    version: str | int
    start: int
    end: int


class MetaInfo(_Tree):
    """SGLang's, of a whole answer."""

    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    output_token_sampling_mask: Any = None
    routed_experts: Any = None
    weight_versions: list[Span] | None = None


class Extension(_Tree):
    """SGLang's, of an answer: in a stream, a chunk of its own."""

    input_ids: Sequence[int] | None = None
    output_ids: list[list[int]] | None = None
    """One list for each choice."""
    routed_experts: Any = None
    """Of the first one."""


class Metadata(_Tree):
    """SGLang's, of a whole answer: the versions of its first choice."""

    weight_versions: list[Span] | None = None


class Choice(_Tree):
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
    prompt_token_ids: Sequence[int] | None = None
    weight_versions: list[Span] | None = None
    routed_experts: Any = None
    prompt_logprobs: Any = None
    meta_info: MetaInfo | None = None


class Usage(_Tree):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Answer(_Tree):
    """A whole body, or one chunk of a stream."""

    model: str | None = None
    choices: list[Choice] | None = None
    usage: Usage | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: Any = None
    sglext: Extension | None = None
    metadata: Metadata | None = None
    error: Any = None


_answer: Final = msgspec.json.Decoder(Answer)
_object: Final = msgspec.json.Decoder(dict[str, Any])
_T = TypeVar("_T")
_EVENT: Final = b"data: "
_NEXT: Final = b"\n\ndata: "
_DONE: Final = b"\n[DONE]"
_NO_NUMBER: Final = re.compile(rb"(?<=[:\[,])(\s*)(?:-?Infinity|NaN)(?=\s*[,}\]])")
"""Python writes these; they are no JSON."""


def decode(document: bytes, prompts: PromptIds | None = None) -> Answer:
    """Raises one of ``UNREADABLE``. ``prompts``: those of the session so far, where the caller remembers them."""
    folded = fold(document) if prompts is not None else None
    if prompts is None or folded is None:
        return _decode(_answer, document)
    try:
        answer = _decode(_answer, folded.document)
        _unfold([answer], folded, prompts)
    except (*UNREADABLE, OverflowError):
        return _decode(_answer, document)
    return answer


def decode_object(document: bytes) -> dict[str, Any]:
    """All of it, as it stands there. Raises one of ``UNREADABLE``."""
    return _decode(_object, document)


def decode_stream(body: bytes, prompts: PromptIds | None = None) -> list[Answer] | None:
    """All chunks of a stream at once, where each event is one ``data`` line and nothing else: None where it is not so,
    or one cannot be read."""
    if not body.startswith(_EVENT) or not body.endswith(b"\n\n"):
        return None
    # Within a document a line's end is escaped: what is replaced stands between events.
    count = body.count(_NEXT) + 1
    lines = body[len(_EVENT) : -2].replace(_NEXT, b"\n")
    if lines.endswith(_DONE):
        lines, count = lines[: -len(_DONE)], count - 1
    folded = fold(lines) if prompts is not None else None
    try:
        answers = _answer.decode_lines(folded.document if folded is not None else lines)
        if prompts is not None and folded is not None:
            _unfold(answers, folded, prompts)
    except (*UNREADABLE, OverflowError):
        return None
    return answers if len(answers) == count else None


def _unfold(answers: Iterable[Answer], folded: Folded, prompts: PromptIds) -> None:
    """Puts the ids in the place of their mark, of which there is one at most."""
    name = folded.name
    for answer in answers:
        extension = answer.sglext if name == "input_ids" else None
        places = (extension,) if name == "input_ids" else (answer, *(answer.choices or ()))
        for place in places:
            if place is not None and getattr(place, name) == [MARK]:
                setattr(place, name, prompts.read(folded.text))
                return


def _decode(decoder: msgspec.json.Decoder[_T], document: bytes) -> _T:
    try:
        return decoder.decode(document)
    except UNREADABLE:
        mended = _NO_NUMBER.sub(rb"\1null", document)
        if mended == document:
            raise
        return decoder.decode(mended)
