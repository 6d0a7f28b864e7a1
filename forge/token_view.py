"""Tokens to look at: the text of each id, coloured by whether it was sampled, trained, and how likely it was.

Owns the colours and the choice of what is elided; the rows come from ``samples.py``. Not obvious: an id may be half a
character, so text appears with the id that makes it whole; without a tokenizer the ids themselves are shown.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.text import Text

from forge.storage.errors import BadInput
from forge.storage.records import Call, Ids, LogProbs, Session
from forge.storage.samples import samples_of

if TYPE_CHECKING:
    from forge.policy.template import Text as Reader

CONTEXT_HEAD: Final = 60
CONTEXT_TAIL: Final = 140
"""Ids of a longer stretch of context that are shown: its beginning and its end."""
STYLES: Final = ((-0.1, "green"), (-1.0, "yellow"), (-3.0, "dark_orange"))
"""Log probability from which on a sampled token has this colour."""
UNLIKELY: Final = "red"
UNKNOWN: Final = "magenta"
LEGEND: Final = Text.assemble(
    ("context", "dim"), "  sampled with log prob ", ("above -0.1", "green"), " ", ("-1", "yellow"), " ",
    ("-3", "dark_orange"), " ", ("below", UNLIKELY), " ", ("none", UNKNOWN), "  ", ("trained", "underline"),
)  # fmt: skip


def reader(data: Path, calls: Sequence[Call], model: str | None) -> Reader | None:
    """The tokenizer of ``model``, or of the run's: the published weights, or the default model under the embedded
    server. None where it is not known, or not on this machine."""
    from forge.policy.model import ensure_model, made
    from forge.policy.weights import current

    published = current(data)
    if model is not None:
        directory: Path | None = ensure_model(model)
    elif published is not None:
        directory = published.path
    else:
        directory = made() if any(call.engine == "embedded" for call in calls) else None
    if directory is None:
        return None
    from forge.policy.template import Text as Reader

    return Reader(directory)


def lines(session: Session, calls: Sequence[Call], wanted: str | None, read: Reader | None) -> Iterator[Text]:
    """One call's tokens, or those of the session's training rows."""
    yield LEGEND
    if read is None:
        yield Text("no tokenizer is known for these ids: give --model DIRECTORY to read them", "dim")
    if wanted is not None:
        yield from _call_lines(_call(calls, wanted, session.session_id), read)
        return
    samples = samples_of(session, calls)
    for sample in samples:
        kept = "" if sample.trainable else f", not trainable: {sample.untrainable_reason}"
        yield Text(
            f"\nrow {sample.row_index} of {sample.row_count}: {sample.join_cause}, {len(sample.turn_call_ids)} turns, "
            f"{int(sample.response_mask.sum()):,} of {len(sample.response_ids):,} ids trained{kept}",
            "bold",
        )
        sampled = np.zeros(len(sample.response_ids), dtype=bool)
        for start, end in zip(sample.turn_starts, sample.turn_ends, strict=True):
            sampled[start:end] = True
        ids = np.concatenate((sample.prompt_ids, sample.response_ids))
        front = len(sample.prompt_ids)
        log_probs = np.concatenate((np.full(front, np.nan, np.float32), sample.rollout_log_probs))
        no = np.zeros(front, dtype=bool)
        mask = np.concatenate((no, sample.response_mask == 1))
        yield _coloured(ids, np.concatenate((no, sampled)), mask, log_probs, read)
    if not samples:
        yield Text("no training row: forge show SESSION without --tokens says why of each call")


def _call(calls: Sequence[Call], wanted: str, session_id: str) -> Call:
    ordered = sorted(calls, key=lambda call: (call.seq, call.call_id, call.choice))
    number = wanted.removeprefix("#")
    if number.isdecimal() and int(number) < len(ordered):
        return ordered[int(number)]
    found = [call for call in ordered if call.call_id.startswith(wanted)]
    if len({call.call_id for call in found}) != 1:
        what = "no call" if not found else f"{len(found)} calls"
        raise BadInput(
            f"{what} {wanted!r} in session {session_id}, which has {len(ordered)}", "forge show SESSION numbers them"
        )
    return found[0]


def _call_lines(call: Call, read: Reader | None) -> Iterator[Text]:
    kept = "" if call.trainable else f", not trainable: {call.untrainable_reason}"
    yield Text(f"\ncall {call.call_id}: {len(call.prompt_ids):,} -> {len(call.output_ids):,} tokens{kept}", "bold")
    count = len(call.prompt_ids)
    ids = np.concatenate((call.prompt_ids, call.output_ids))
    sampled = np.arange(len(ids)) >= count
    log_probs = np.full(len(ids), np.nan, dtype=np.float32)
    given = call.output_log_probs[: len(call.output_ids)]
    log_probs[count : count + len(given)] = given
    yield _coloured(ids, sampled, sampled & call.trainable, log_probs, read)


def _coloured(ids: Ids, sampled: np.ndarray, mask: np.ndarray, log_probs: LogProbs, read: Reader | None) -> Text:
    text = Text()
    edges = [0, *(np.flatnonzero(np.diff(sampled)) + 1).tolist(), len(ids)]
    for start, end in itertools.pairwise(edges):
        if start == end:
            continue
        if sampled[start]:
            for piece, at in _pieces(ids[start:end], read):
                style = _style(float(log_probs[start + at]))
                text.append(piece, f"{style} underline" if mask[start + at] else style)
        else:
            text.append(_context(ids[start:end], read), "dim")
    return text


def _context(ids: Ids, read: Reader | None) -> str:
    if len(ids) <= CONTEXT_HEAD + CONTEXT_TAIL:
        return _plain(ids, read)
    left = len(ids) - CONTEXT_HEAD - CONTEXT_TAIL
    return f"{_plain(ids[:CONTEXT_HEAD], read)} [... {left:,} ids ...] {_plain(ids[-CONTEXT_TAIL:], read)}"


def _plain(ids: Ids, read: Reader | None) -> str:
    return "".join(piece for piece, _ in _pieces(ids, read))


def _pieces(ids: Ids, read: Reader | None) -> Iterator[tuple[str, int]]:
    """Text and the place of the id that completed it."""
    if read is None:
        yield from ((f"{index} ", at) for at, index in enumerate(ids.tolist()))
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for at, index in enumerate(ids.tolist()):
        yield decoder.decode(read.bytes_of(index)), at
    yield decoder.decode(b"", final=True), len(ids) - 1


def _style(log_prob: float) -> str:
    if np.isnan(log_prob):
        return UNKNOWN
    return next((style for limit, style in STYLES if log_prob >= limit), UNLIKELY)
