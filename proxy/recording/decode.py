"""From a call's frames to its rows: a pure, total function.

Owns what of a request and an answer becomes which column. It must not know files, journals or other calls (places in
the tree and ``seq`` order are the dataset's). It never raises: bytes that cannot be read give an untrainable row that
says why. The one non-obvious fact: usage sums over the choices of a
call, so lengths are checked for the call as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy.dialects.overlay import LIMITS
from forge.proxy.engines import ENGINES, read
from forge.proxy.engines.base import Engine, Tokens
from forge.proxy.engines.prompt_ids import PromptIds
from forge.proxy.recording.assembly import ClosedCall
from forge.proxy.recording.memory import Memory, SessionMemory
from forge.proxy.recording.worth import untrainable
from forge.proxy.redaction import redact
from forge.storage.frames import Close, Open, seq
from forge.storage.media_text import escaped
from forge.storage.records import (
    Call,
    Ids,
    VersionSource,
    empty_ids,
    empty_log_probs,
)

FROM_OPEN: Final = (
    *("call_id", "run_id", "session_id", "retry_of", "harness", "harness_version", "dialect", "engine"),
    *("agent_id", "kind", "kind_rule", "model_requested", "sampling_asked", "sampling_defaults", "logprobs_mode"),
    *("template_hash", "tokenizer_hash", "policy_lineage"),
)
"""Columns that a frame or an answer holds under the same name."""
FROM_CLOSE: Final = (
    *("first_byte_us", "end_us", "status", "http_status", "delivered", "delivered_sha256", "attempts"),
)
FROM_TOKENS: Final = (
    *("finish_reason", "prompt_ids", "output_ids", "output_log_probs", "top_logprobs", "prompt_tokens"),
    *("prompt_log_probs", "routed_experts", "sampling_mask"),
)

_of_open: Final = attrgetter(*FROM_OPEN)
_of_close: Final = attrgetter(*FROM_CLOSE)
_of_tokens: Final = attrgetter(*FROM_TOKENS)


def decode_call(
    open: Open, request: bytes, sent: bytes, answer: bytes, close: Close, memory: SessionMemory | None = None
) -> list[Call]:
    """One row per choice, at least one. ``sent`` is what the engine got, ``answer`` its body as received. ``memory`` is
    of the session so far: it makes it faster, never different."""
    if memory is None:
        memory = SessionMemory()
    asked = memory.requests.read(sent)
    tokens, failure = _read(open.engine, answer, close, memory.prompts)
    said = {
        "messages": asked.messages,
        "media": asked.media,
        "tools": _text(asked.members.get("tools")),
        "request_raw": None if open.dialect == "chat" else request,
    }
    return [
        _row(open, said, asked.members, close, choice, token, tokens, failure)
        for choice, token in enumerate(tokens or [_no_tokens()])
    ]


def decode_closed(closed: ClosedCall, memory: Memory) -> list[Call]:
    """The same of a call as the journal gives it."""
    request = b"" if closed.open.dialect == "chat" else closed.request  # of chat, what was sent says it all
    session = memory.of(closed.open.session_id)
    return decode_call(closed.open, request, closed.sent, closed.answer, closed.close, session)


def _read(engine_name: str, answer: bytes, close: Close, prompts: PromptIds) -> tuple[list[Tokens], str | None]:
    engine: Engine = ENGINES.get(engine_name, ENGINES["openai"])
    if not answer or answer.isspace():
        return [], None
    try:
        return read(engine, answer, close.content_type, prompts), None
    except ValueError as failure:
        return [], str(failure)


def _no_tokens() -> Tokens:
    return Tokens(empty_ids(), empty_ids(), empty_log_probs(), None, None, None, {}, None)


def _row(
    open: Open,
    said: Mapping[str, Any],
    asked: Mapping[str, Raw],
    close: Close,
    choice: int,
    token: Tokens,
    tokens: Sequence[Tokens],
    failure: str | None,
) -> Call:
    version = _versions(open, close, token)
    reason = untrainable(open, asked, close, token, tokens, version)
    return Call(
        seq=seq(open),
        choice=choice,
        response=escaped(msgspec.json.encode(token.message)).decode() if token.message else None,
        replica=close.replica or open.replica,
        model_served=token.model,
        completion_tokens=_completion_tokens(token, tokens),
        edits=_edits(open, close),
        sampling_sent=_sampling_sent(open, close),
        start_us=open.wall_us,
        error=redact(close.error or token.error or failure or "") or None,
        weight_digest=close.weight_digest or open.weight_digest,
        trainable=reason is None,
        untrainable_reason=reason,
        **said,
        **dict(zip(FROM_OPEN, _of_open(open), strict=True)),
        **dict(zip(FROM_CLOSE, _of_close(close), strict=True)),
        **dict(zip(FROM_TOKENS, _of_tokens(token), strict=True)),
        **version,
    )


def _edits(open: Open, close: Close) -> str | None:
    """Of the request as it was first sent, and those made before it was sent again."""
    later = _later_edits(close)
    if not later:
        return open.edits
    return msgspec.json.encode([*msgspec.json.decode(open.edits or b"[]"), *later]).decode()


def _sampling_sent(open: Open, close: Close) -> str | None:
    """Without what we asked for ourselves: that samples nothing."""
    sent = open.sampling_sent
    if sent is None or not _later_edits(close):
        return sent
    kept = {name: value for name, value in msgspec.json.decode(sent).items() if name not in LIMITS}
    return msgspec.json.encode(kept).decode() if kept else None


def _later_edits(close: Close) -> list[Any]:
    attempts = msgspec.json.decode(close.attempts) if close.attempts else []
    return [attempt["then"] for attempt in attempts if "then" in attempt]


def _text(value: Raw | None) -> str | None:
    """A member's JSON text; None for null."""
    text = "null" if value is None else str(memoryview(value), "utf-8", "replace")
    return None if text == "null" else text


def _completion_tokens(token: Tokens, tokens: Sequence[Tokens]) -> int | None:
    """The engine's count: of this choice where its sum over all choices agrees with the ids, else as it said."""
    if len(tokens) > 1 and token.completion_tokens == _total(tokens):
        return len(token.output_ids)
    return token.completion_tokens


def _total(tokens: Sequence[Tokens]) -> int:
    return sum(len(token.output_ids) for token in tokens)


def _versions(open: Open, close: Close, token: Tokens) -> dict[str, Any]:
    spans = token.version_spans
    if spans and _tiles(spans, token.output_ids):
        return {
            "policy_version_start": spans[0][0],
            "policy_version_end": spans[-1][0],
            "version_spans": msgspec.json.encode(spans).decode(),
            "version_source": VersionSource.ENGINE_SPANS.value,
        }
    parts = msgspec.json.decode(close.version_spans) if close.version_spans else []
    told = [(version, start, len(token.output_ids) if end is None else end) for version, start, end in parts]
    if told and _tiles(told, token.output_ids):
        return {
            "policy_version_start": told[0][0],
            "policy_version_end": told[-1][0],
            "version_spans": msgspec.json.encode([span for span in told if span[1] < span[2]]).decode(),
            "version_source": VersionSource.REPLICA_STATE.value,
        }
    if token.version is not None:
        return {
            "policy_version_start": token.version,
            "policy_version_end": token.version,
            "version_spans": None,
            "version_source": VersionSource.ENGINE_ANSWER.value,
        }
    start = close.policy_version_start if close.policy_version_start is not None else open.policy_version
    end = close.policy_version if close.policy_version is not None else start
    return {
        "policy_version_start": start,
        "policy_version_end": end,
        "version_spans": None,
        "version_source": open.version_source,
    }


def _tiles(spans: Sequence[tuple[int, int, int]], ids: Ids) -> bool:
    at = 0
    for _, start, end in spans:
        if start != at or end < start:
            return False
        at = end
    return at == len(ids)
