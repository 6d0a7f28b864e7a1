"""Whether a call's tokens may reach a gradient, and if not why: a pure, total function of what was sent and answered.

Owns every check that a call must pass. It must not know how an answer is read, nor repair anything. The one
non-obvious fact: what shapes the distribution may never have been sent; a server's own defaults count as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.engines.base import Tokens
from forge.storage.frames import Close, Open
from forge.storage.records import CallStatus, Untrainable

ABOVE_ZERO: Final = 1e-5
"""A log softmax in fp32 can come out above zero by this much."""
ALL_ZERO_LEN: Final = 16
"""An answer of at least this many tokens whose log probs are all exactly 0 was not scored (speculative decoding)."""
ABORT: Final = "abort"
"""vLLM's finish reason for a generation it gave up."""
MARKUP: Final = re.compile(r"(?:<[^<>]*>|\[THINK\]|\[/THINK\]|analysis|commentary|final|assistant)*")
"""What a template or a format of channels may write before the first word of a message."""
SPECIAL: Final = re.compile(r"<[^<>\s]+>|\[/?[A-Za-z_]+\]")
"""A token that a tokenizer may call special, by the whole of its text."""


def untrainable(
    open: Open,
    asked: Mapping[str, Raw],
    close: Close,
    token: Tokens,
    tokens: Sequence[Tokens],
    version: Mapping[str, Any],
) -> str | None:
    """The first reason against training on it, the plainest first."""
    log_probs = token.output_log_probs
    count = len(token.output_ids)
    shape = _shape_of(open, asked)
    sums_up = token.completion_tokens == sum(len(one.output_ids) for one in tokens)
    # Of a NaN neither comparison holds.
    scored = not len(log_probs) or bool(log_probs.max() <= ABOVE_ZERO and log_probs.min() > -np.inf)
    checks: tuple[tuple[bool, Untrainable], ...] = (
        (close.status != CallStatus.OK or token.finish_reason in (None, ABORT), Untrainable.STATUS),
        (not len(token.prompt_ids), Untrainable.PROMPT_IDS_MISSING),
        (not count and token.completion_tokens == 0, Untrainable.NO_TOKENS),
        (not count, Untrainable.OUTPUT_IDS_MISSING),
        (not len(log_probs), Untrainable.LOG_PROBS_MISSING),
        (len(log_probs) != count or not sums_up, Untrainable.LENGTH_MISMATCH),
        (not scored or _unscored(open, shape, token), Untrainable.LOG_PROBS_INVALID),
        (not _value(asked, "echo") and not says_the_same(token), Untrainable.TEXT_MISMATCH),
        (shape.constrained if token.sampling_mask is None else shape.constrained_masked, Untrainable.CONSTRAINED),
        (version["policy_version_start"] is None and close.policy_version is None, Untrainable.VERSION_UNKNOWN),
    )
    return next((reason.value for failed, reason in checks if failed), None)


class _Shape(NamedTuple):
    """What the members that were sent, and the server's defaults, make of the distribution."""

    temperature: float
    constrained: bool
    constrained_masked: bool
    """Where the engine says which tokens a truncation kept."""


def _shape_of(open: Open, asked: Mapping[str, Raw]) -> _Shape:
    return _shape(open.sampling_defaults, tuple((name, bytes(asked[name])) for name in WEIGHED if name in asked))


@lru_cache(maxsize=64)
def _shape(defaults: str | None, members: tuple[tuple[str, bytes], ...]) -> _Shape:
    """What was sent, over what the server takes where it was sent nothing: the same for most calls of a run."""
    sent: dict[str, bytes | Raw] = {name: value for name, value in members if value != b"null"}
    effective = dict(splice.members(defaults.encode())) if defaults else {}
    if all(name in sent for name in DEFAULTED):
        effective.pop(UNTOLD, None)
    both = {**effective, **sent}
    return _Shape(_number(both, "temperature", 1.0), constrained(both), constrained(both, masked=True))


def says_the_same(token: Tokens) -> bool:
    """Whether the text of the message can be what the sampled tokens say: each part of it stands in theirs, in order,
    and nothing but markup before the first. Not claimed (true) where a token's text is not known, nor of the content
    where a parser took calls out of it.

    White space is left out of the comparison: parsers strip it, and some tokenizers write none before the first word.
    A stop string cuts the text, not the tokens, and special tokens have no text in the message: what only may be one
    is left out of both.
    """
    if token.pieces is None or not token.message:
        return True
    said = "".join(token.pieces)
    if not token.message.get("reasoning") and said.startswith(token.message.get("content") or ""):
        return True
    parts = [token.message.get(name) or "" for name in ("reasoning", "content")]
    if token.message.get("tool_calls"):
        parts = parts[:1]
    if _in_order(parts, said):
        return True
    special = {piece for piece in token.pieces if SPECIAL.fullmatch(piece)}
    if not special:
        return False
    for piece in special:
        parts = [part.replace(piece, "") for part in parts]
    return _in_order(parts, "".join(piece for piece in token.pieces if piece not in special))


def _in_order(parts: Iterable[str], text: str) -> bool:
    said, at = "".join(text.split()), 0
    for part in filter(None, ("".join(part.split()) for part in parts)):
        found = said.find(part, at)
        if found < 0 or (not at and not MARKUP.fullmatch(said, 0, found)):
            return False
        at = found + len(part)
    return True


def _unscored(open: Open, shape: _Shape, token: Tokens) -> bool:
    """Numbers that are there but are not the log probs of what was sampled from."""
    log_probs = token.output_log_probs
    if len(log_probs) >= ALL_ZERO_LEN and not np.any(log_probs):
        return True
    # Raw log probs are taken before the temperature is.
    return open.logprobs_mode == "raw" and shape.temperature != 1.0


UNTOLD: Final = "untold"
"""Among a server's sampling defaults: it has some that shape the distribution, and does not say which."""
DEFAULTED: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What servers take from a model's ``generation_config`` where a request says nothing of it."""
NEUTRAL: Final[Mapping[str, float]] = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "best_of": 1.0,
}
SHAPING: Final = (
    *("logit_bias", "bad_words", "allowed_token_ids", "structured_outputs", "use_beam_search", "min_tokens"),
    *("thinking_token_budget", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("regex", "ebnf", "json_schema", "grammar", "custom_logit_processor", UNTOLD),
)
"""Members that shape the distribution whenever they say anything at all."""
WEIGHED: Final = tuple(dict.fromkeys((*DEFAULTED, *NEUTRAL, *SHAPING, "response_format", "tool_choice")))
"""All members that say anything of the distribution."""
_SAYS_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})


def constrained(sent: Mapping[str, bytes | Raw], *, masked: bool = False) -> bool:
    """Whether what the engine was sent shapes the distribution beyond its temperature. ``masked``: the engine says
    which tokens a truncation kept."""
    if any(_number(sent, name, neutral) != neutral for name, neutral in NEUTRAL.items() if name in sent):
        return True
    truncated = _number(sent, "top_p", 1.0) < 1 or _number(sent, "top_k", 0) > 0 or _number(sent, "min_p", 0.0) != 0
    if _number(sent, "temperature", 1.0) <= 0 or (truncated and not masked):
        return True
    if any(_value(sent, name) not in _SAYS_NOTHING for name in SHAPING if name in sent):
        return True
    form = _value(sent, "response_format")
    if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
        return True
    return _value(sent, "tool_choice") not in (None, "auto", "none")


def _value(sent: Mapping[str, bytes | Raw], name: str) -> Any:
    value = sent.get(name)
    try:
        return None if value is None else msgspec.json.decode(value)
    except splice.UNREADABLE:
        return None


def _number(sent: Mapping[str, bytes | Raw], name: str, default: float) -> float:
    value = _value(sent, name)
    return value if isinstance(value, int | float) else default
