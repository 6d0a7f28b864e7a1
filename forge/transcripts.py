"""A harness's own record of its calls against ours: do both tell of the same calls, with the same tokens?

Pure: what the harness wrote down (``Heard``) and the recorded calls in, the differences out. It knows no file and no
harness. The non-obvious fact: the two need not be equal one for one. A call that broke off, or that the harness asked
again, is in our record for certain and in the harness's only perhaps, and so is a call that it makes on the side (a
title, a summary, a sub-agent's); what the harness acted on must be in both. Order does not tell either: sub-agents
run in parallel, and each has a record of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from forge.adapters.harnesses.base import Heard
from forge.storage.records import Call, CallKind, CallStatus


class Verdict(StrEnum):
    OK = "ok"
    DIFFERS = "differs"
    NONE = "none"
    """The harness keeps no record that counts tokens, or it could not be read."""


class Kind(StrEnum):
    """What a difference is."""

    TOKENS = "tokens"
    """Both have the call; its counts differ."""
    UNRECORDED = "unrecorded"
    """The harness counts a call that we have no row for."""
    UNHEARD = "unheard"
    """We have a row that the harness should count, and does not."""


@dataclass(frozen=True, slots=True)
class Difference:
    kind: Kind
    call_id: str | None
    heard: Heard | None
    recorded: Heard | None

    def __str__(self) -> str:
        match self.kind:
            case Kind.TOKENS:
                return f"call {self.call_id}: the harness counts {_text(self.heard)}, we {_text(self.recorded)}"
            case Kind.UNRECORDED:
                return f"the harness counts a call of {_text(self.heard)} that has no row"
            case Kind.UNHEARD:
                return f"call {self.call_id} of {_text(self.recorded)} is not in the harness's record"


@dataclass(frozen=True, slots=True)
class Comparison:
    verdict: Verdict
    heard: int = 0
    """Calls that the harness tells of."""
    recorded: int = 0
    """Calls that we have rows for."""
    differences: tuple[Difference, ...] = ()

    def told(self) -> Mapping[str, Any]:
        """As it is kept beside the transcript."""
        return {
            "verdict": self.verdict.value,
            "heard": self.heard,
            "recorded": self.recorded,
            "differences": [
                {"kind": each.kind.value, "call_id": each.call_id, "text": str(each)} for each in self.differences
            ],
        }


NO_TRANSCRIPT = Comparison(Verdict.NONE)


@dataclass(slots=True)
class _Row:
    """One recorded call, all its choices."""

    call_id: str
    required: bool
    """The harness must have written it down."""
    broke_off: bool
    """The harness may have counted any part of it, or none."""
    counts: Heard


def compare(heard: Sequence[Heard] | None, calls: Sequence[Call], *, ended: bool = True) -> Comparison:
    """``ended``: the harness ended by itself; one that was killed may not have written its last call down."""
    if heard is None:
        return NO_TRANSCRIPT
    rows = _rows(calls, ended=ended)
    left, missing = _matched(heard, [row for row in rows if not row.broke_off])
    broken = sum(row.broke_off for row in rows)
    differences = [
        Difference(Kind.TOKENS, row.call_id, each, row.counts) for each, row in zip(left, missing, strict=False)
    ]
    differences += [Difference(Kind.UNHEARD, row.call_id, None, row.counts) for row in missing[len(left) :]]
    differences += [Difference(Kind.UNRECORDED, None, each, None) for each in left[len(missing) + broken :]]
    verdict = Verdict.DIFFERS if differences else Verdict.OK
    return Comparison(verdict, len(heard), len(rows), tuple(differences))


def _rows(calls: Sequence[Call], *, ended: bool) -> list[_Row]:
    """One per call, in order."""
    choices: dict[str, list[Call]] = {}
    for call in sorted(calls, key=lambda each: (each.seq, each.choice)):
        choices.setdefault(call.call_id, []).append(call)
    retried = {call.retry_of for call in calls}
    rows = []
    for call_id, group in choices.items():
        ok = all(call.status == CallStatus.OK for call in group)
        required = ok and group[0].kind == CallKind.MAIN and call_id not in retried
        rows.append(_Row(call_id, required, not ok, _counts(group)))
    if rows and not ended:
        rows[-1].required = False
    return rows


def _counts(choices: Sequence[Call]) -> Heard:
    """What stands in the record; the engine's own count where it gave no ids."""
    outputs = [len(call.output_ids) or call.completion_tokens for call in choices]
    known = [count for count in outputs if count is not None]
    return Heard(
        len(choices[0].prompt_ids) or choices[0].prompt_tokens, sum(known) if len(known) == len(outputs) else None
    )


def _matched(heard: Iterable[Heard], rows: Sequence[_Row]) -> tuple[list[Heard], list[_Row]]:
    """What is left of each side: the harness's calls that fit none of ours, and ours that it should have told of."""
    free = sorted(rows, key=lambda row: not row.required)
    left = []
    # Those that say least fit almost anything: they choose last.
    for each in sorted(heard, key=lambda each: (each.prompt_tokens is None) + (each.output_tokens is None)):
        fits = next((index for index, row in enumerate(free) if _agree(each, row.counts)), None)
        if fits is None:
            left.append(each)
        else:
            del free[fits]
    # A failed call is often written down with nothing sampled: it is no counterpart of one that went well.
    left.sort(key=lambda each: not each.output_tokens)
    return left, [row for row in free if row.required]


def _agree(heard: Heard, recorded: Heard) -> bool:
    pairs = ((heard.prompt_tokens, recorded.prompt_tokens), (heard.output_tokens, recorded.output_tokens))
    return all(a is None or b is None or a == b for a, b in pairs)


def _text(counts: Heard | None) -> str:
    assert counts is not None
    prompt, output = ("?" if each is None else str(each) for each in (counts.prompt_tokens, counts.output_tokens))
    return f"{prompt} + {output} tokens"
