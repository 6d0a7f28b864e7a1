"""What going on from ids needs, whichever engine does it: what can be carried over, where stop strings end the rest.

Owns the one continuation that all engines share (of a raw completion, whose route takes ids). The non-obvious facts:
an engine that is given prompt and partial answer as a prompt counts penalties, seeds and grammars anew, so such a
generation cannot go on; and it looks for stop strings in the rest alone, so one that begins before it is ours to find.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from forge.proxy import splice
from forge.proxy.engines.base import Continuing, GivenUp, Question, Rest
from forge.proxy.engines.rest import Said, said
from forge.proxy.engines.shapes import decode_object

ABORT: Final = "abort"
RAW_PATH: Final = "/v1/completions"
DETOKENIZE: Final = "/detokenize"
RAW_LIMIT: Final = 16
"""Output tokens of a raw completion that names no limit."""
MATCHED: Final = ("stop_reason", "matched_stop")
"""Where engines say which stop string or token ended an answer."""
UNFINISHED: Final = "\ufffd"
"""What a tokenizer writes for a part of a character."""
REMEMBERS: Final = (
    *("presence_penalty", "frequency_penalty", "structured_outputs", "bad_words", "thinking_token_budget"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "ebnf", "json_schema", "grammar"),
    *("custom_logit_processor", "logits_processors", "extra_args", "vllm_xargs", "use_beam_search", "echo", "suffix"),
)
"""Members under which what was sampled decides what comes next, beyond the ids themselves."""
_SAYS_NOTHING: Final[tuple[Any, ...]] = (None, False, 0, "", [], {})


class Part(NamedTuple):
    """The rest, cut where a stop string ends it."""

    ids: list[int]
    log_probs: list[dict[str, Any]]
    finish_reason: str
    stop: str | int | None
    """The stop string or token that ended it."""
    over: str
    """The end of its text that is not said."""

    @property
    def spoken(self) -> list[int]:
        """Less the token that ends it."""
        return self.ids[:-1] if self.finish_reason == "stop" and not isinstance(self.stop, str) else self.ids


def check_carries(params: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` where the engine remembers more of a generation than its ids."""
    found = [name for name in REMEMBERS if params.get(name) not in _SAYS_NOTHING]
    if params.get("temperature") != 0 and (params.get("seed") is not None or params.get("sampling_seed") is not None):
        found.append("seed")
    form = params.get("response_format") or {}
    if form.get("type", "text") != "text" or params.get("tool_choice") not in (None, "auto", "none"):
        found.append("grammar")
    if found:
        raise ValueError(f"{found[0]} cannot be carried over")


def left(limit: int, so_far: GivenUp) -> int:
    """Of the output tokens asked for. Raises ``ValueError`` where none is."""
    if limit <= len(so_far.output_ids):
        raise ValueError("no output tokens are left")
    return limit - len(so_far.output_ids)


def limits(params: Mapping[str, Any], so_far: GivenUp) -> dict[str, int]:
    """Each limit that is there, less what was sampled."""
    found = {n: left(params[n], so_far) for n in ("max_tokens", "max_completion_tokens") if params.get(n) is not None}
    least = params.get("min_tokens")
    return found | ({"min_tokens": max(0, least - len(so_far.output_ids))} if least else {})


def part_of(found: Said, so_far: GivenUp, params: Mapping[str, Any], matched: Any) -> Part:
    """``matched``: what the engine says ended it. Raises ``ValueError`` where the answer is not whole."""
    if found.finish_reason is None or len(found.ids) != len(found.log_probs):
        raise ValueError("the rest is not whole")
    stops = params.get("stop") or []
    stop = stopped(
        so_far.pieces,
        found.pieces,
        [stops] if isinstance(stops, str) else stops,
        include=bool(params.get("include_stop_str_in_output") or params.get("no_stop_trim")),
    )
    if stop is None and isinstance(matched, str):
        raise ValueError("the stop string that ended it cannot be found")
    if stop is None:
        return Part(found.ids, found.log_probs, found.finish_reason, matched, "")
    return Part(found.ids[: stop.tokens], found.log_probs[: stop.tokens], "stop", stop.string, stop.over)


class Stop(NamedTuple):
    string: str
    tokens: int
    """Of the rest that belong to the answer."""
    over: str


def stopped(before: Sequence[str], rest: Sequence[str], stops: Sequence[str], *, include: bool = False) -> Stop | None:
    """The first stop string that ends in the rest. Both are the texts of tokens."""
    cut, text = len("".join(before)), "".join([*before, *rest])
    places = [(text.find(stop, max(0, cut - len(stop) + 1)), stop) for stop in stops if stop]
    found = [(at + len(stop), at, stop) for at, stop in places if at >= 0]
    if not found:
        return None
    end, at, stop = min(found, key=lambda one: one[0])
    length = cut
    count = 0
    while length < end:
        length += len(rest[count])
        count += 1
    return Stop(stop, count, text[end if include else at : length])


def mended(so_far: GivenUp, found: Said, model: str | None) -> Generator[Question, bytes, str | None]:
    """Where the cut lies within a character, the text of all ids; and its entry gets the character: the engine took
    what came before for a prompt. None where it lies between two."""
    split = bool(so_far.pieces) and (not so_far.pieces[-1] or UNFINISHED in so_far.pieces[-1])
    if not split or not found.ids:
        return None
    last = found.finish_reason == "stop" and not any(isinstance(found.end.get(name), str) for name in MATCHED)
    ids = so_far.output_ids + (found.ids[:-1] if last else found.ids)
    named = {} if model is None else {"model": model}
    answer = decode_object((yield Question(DETOKENIZE, msgspec.json.encode({"tokens": ids, **named}))))
    text = answer["prompt"] if "prompt" in answer else answer["text"]
    head = "".join(so_far.pieces).rstrip(UNFINISHED)
    spoken = found.log_probs[: len(found.ids) - last]
    at = next((n for n, e in enumerate(spoken) if e["token"] and UNFINISHED not in e["token"]), len(spoken))
    tail = "".join(entry["token"] for entry in spoken[at:])
    if at and text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail):
        spoken[at - 1]["token"] = text[len(head) : len(text) - len(tail)]
    return str(text)


def raw(body: bytes, so_far: GivenUp) -> Continuing:
    """Of a raw completion: the same route, with the ids for a prompt."""
    params = {name: msgspec.json.decode(value) for name, value in splice.members(body).items()}
    check_carries(params)
    ids = so_far.prompt_ids + so_far.output_ids
    asked = params | {"max_tokens": RAW_LIMIT} if params.get("max_tokens") is None else params
    asked = asked | limits(asked, so_far) | {"prompt": ids, "stream": True}
    found = said((yield Question(RAW_PATH, msgspec.json.encode(asked), samples=True)))
    if found.prompt_ids != ids:
        raise ValueError("it went on from other ids")
    if found.finish_reason == ABORT:
        return Rest(found.ids, found.log_probs, ABORT, text=found.text)
    text = yield from mended(so_far, found, params.get("model"))
    matched = next((name for name in MATCHED if name in found.end), MATCHED[0])
    part = part_of(found, so_far, params, found.end.get(matched))
    if params.get("stop"):
        # Text that may begin a stop string is held back: only the tokens tell all of it.
        spoken = [entry["token"] for entry in part.log_probs[: len(part.spoken)]]
        text = "".join([*so_far.pieces, *spoken])
        text = text[: len(text) - len(part.over)]
    elif text is None:
        text = so_far.text + found.text
    return Rest(part.ids, part.log_probs, part.finish_reason, {matched: part.stop}, text=text)
