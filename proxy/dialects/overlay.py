"""The recorded edits of a chat request: the run's sampling, the ``max_tokens`` clamp, the model name.

Owns which members say how tokens are sampled and what the session lays over them; works on raw JSON values of the
top level and must not know any wire format but chat. The one non-obvious fact: a limit that is as long as the
engine's whole context is taken out instead of lowered, because an engine then gives all that fits beside the prompt,
while any number we chose could be one too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.base import BadRequest, Overrides
from forge.proxy.engines.base import Collect

LIMITS: Final = ("max_completion_tokens", "max_tokens")
"""The stronger one first."""
DISTRIBUTION: Final = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "bad_words", "allowed_token_ids"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty"),
        *("min_tokens", "use_beam_search", "thinking_token_budget"),
    }
)
"""What shapes the distribution: under a run's sampling the harness's own values do not reach the engine."""
SAMPLING: Final = DISTRIBUTION | {
    *LIMITS,
    *("n", "best_of", "echo", "stop", "stop_token_ids", "ignore_eos", "logprobs", "top_logprobs", "reasoning_effort"),
    *("response_format", "structured_outputs", "tool_choice", "parallel_tool_calls"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
}
"""What is recorded as asked and as sent."""

COLLECTED: Final = tuple(field.name for field in fields(Collect))
"""What a run names among its sampling to have it recorded: asked of the engine, kept from the harness."""

Values = Mapping[str, bytes | Raw]


@dataclass(frozen=True, slots=True)
class Overlay:
    changes: Mapping[str, bytes | None]
    """Top-level members to set; None takes one out."""
    edits: list[dict[str, Any]]


def overlay(request: Values, overrides: Overrides) -> Overlay:
    """Raises ``BadRequest`` where a limit is no number."""
    changes: dict[str, bytes | None] = {}
    edits: list[dict[str, Any]] = []
    for edit in (
        _sampling(request, overrides, changes),
        _limit(request, overrides, changes),
        _model(request, overrides, changes),
    ):
        if edit is not None:
            edits.append(edit)
    return Overlay(changes, edits)


def collected(overrides: Overrides) -> Collect:
    """What the run has recorded beside ids and log probs. Raises ``BadRequest``: the run's options are at fault."""
    wanted = {name: value for name, value in (overrides.sampling or {}).items() if name in COLLECTED}
    try:
        return msgspec.convert(wanted, Collect)
    except msgspec.ValidationError as failure:
        raise BadRequest(f"the run's sampling cannot be read: {failure}", code="bad_sampling") from failure


def limit_of(body: bytes) -> int | None:
    """The output tokens that a request as sent asks for; None where it names no number."""
    try:
        asked = splice.members(body)
        found = [msgspec.json.decode(asked[name]) for name in LIMITS if name in asked]
    except splice.UNREADABLE:
        return None
    return next((value for value in found if isinstance(value, int)), None)


def without_limit(body: bytes) -> bytes:
    """The request without it: an engine then gives all that fits beside the prompt."""
    return splice.rebuild({name: value for name, value in splice.members(body).items() if name not in LIMITS})


def with_model(body: bytes, name: str) -> bytes:
    return splice.rebuild(splice.members(body) | {"model": Raw(msgspec.json.encode(name))})


def sampling(request: Values) -> str | None:
    """JSON object of the sampling members."""
    kept = {name: Raw(bytes(value)) for name, value in request.items() if name in SAMPLING}
    return msgspec.json.encode(kept).decode("utf-8", "replace") if kept else None


def _sampling(request: Values, overrides: Overrides, changes: dict[str, bytes | None]) -> dict[str, Any] | None:
    if overrides.sampling is None:
        return None
    sent = {name: value for name, value in overrides.sampling.items() if name not in (*LIMITS, *COLLECTED)}
    asked = {name: decode_member(request, name) for name in sorted(DISTRIBUTION | sent.keys()) if name in request}
    if asked == sent:
        return None
    changes.update(dict.fromkeys(asked))
    changes.update({name: msgspec.json.encode(value) for name, value in sent.items()})
    return {"edit": "sampling", "asked": asked, "sent": sent}


def _limit(request: Values, overrides: Overrides, changes: dict[str, bytes | None]) -> dict[str, Any] | None:
    asked: int | None = None
    name = "max_tokens"
    for candidate in reversed(LIMITS):
        value = decode_member(request, candidate)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadRequest(f"`{candidate}` must be a whole number", param=candidate)
        asked, name = value, candidate
    run = overrides.sampling or {}
    caps = [asked, overrides.max_tokens_cap, *(run.get(limit) for limit in LIMITS)]
    known = [cap for cap in caps if cap is not None]
    sent = min(known) if known else None
    too_much = [each for each in (overrides.context_len, overrides.unfit_limit) if each is not None]
    if sent is not None and too_much and sent >= min(too_much):
        sent = None
    if sent == asked:
        return None
    changes.update({limit: None for limit in LIMITS if limit in request})
    if sent is not None:
        changes[name] = msgspec.json.encode(sent)
    return {"edit": "max_tokens", "asked": asked, "sent": sent}


def _model(request: Values, overrides: Overrides, changes: dict[str, bytes | None]) -> dict[str, Any] | None:
    asked = decode_member(request, "model")
    if overrides.model is None or asked == overrides.model:
        return None
    changes["model"] = msgspec.json.encode(overrides.model)
    return {"edit": "model", "asked": asked, "sent": overrides.model}


def decode_member(request: Values, name: str) -> Any:
    """A top-level member's value; None where it is missing. Raises ``BadRequest``."""
    value = request.get(name)
    try:
        return None if value is None else msgspec.json.decode(value)
    except splice.UNREADABLE as failure:
        raise BadRequest(f"`{name}` is not valid JSON: {failure}", param=name) from failure
