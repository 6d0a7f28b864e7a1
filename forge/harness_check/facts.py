"""What a check found of a harness, and the last check of each kept in the cache folder. Pure but for that file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from forge.harness_check.policy import Served
from forge.run_report import SessionReport
from forge.storage.cache import cache_root
from forge.storage.files import write_whole
from forge.storage.records import Call, CallKind, CallStatus

TURNS: Final = 2
"""A tool call and what follows it: with fewer there was no agent."""


class CallFact(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded call."""

    call_id: str
    wire: str
    kind: str
    status: str
    prompt_tokens: int
    output_tokens: int
    join: str
    join_cause: str | None
    """Why it is not the exact continuation of an earlier call; null where it is."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one session of one harness at the scripted task."""

    harness: str
    version: str
    checked: str
    """UTC, to the second."""
    status: str
    error: str | None
    seconds: float
    task_done: bool
    """By a tool: the file is there, and a call followed the tool's result."""
    served: int
    """Generations that the policy server made."""
    recorded: int
    same: bool
    """Every generation is a row, with the same ids, and no row is without its generation."""
    ids_complete: bool
    """Every row has prompt ids, output ids and a log prob for each, and may train."""
    wire: tuple[str, ...]
    calls: tuple[CallFact, ...]
    rows: int
    """Training rows: 1 where nothing moved."""
    side_calls: Mapping[str, int]
    """Kind to calls, for those that are not the main loop's."""
    transcript: str
    differences: tuple[str, ...]
    outside: tuple[str, ...] | None
    """Hosts it asked for by name; null: not traced."""

    @property
    def passed(self) -> bool:
        return self.task_done and self.same

    @property
    def moved(self) -> list[CallFact]:
        """Calls of the main loop that do not continue an earlier one, after the first."""
        main = [call for call in self.calls if call.kind == CallKind.MAIN]
        return [call for call in main[1:] if call.join_cause is not None]


def gather(
    session: SessionReport, version: str, calls: Sequence[Call], served: Sequence[Served], outside: Sequence[str] | None
) -> Facts:
    """``calls``: the session's, in order."""
    acted = [call for call in calls if call.kind == CallKind.MAIN and call.status == CallStatus.OK]
    return Facts(
        harness=session.harness,
        version=version,
        checked=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        status=session.status,
        error=session.error,
        seconds=round(session.seconds, 1),
        task_done=session.reward == 1.0 and len(acted) >= TURNS,
        served=len(served),
        recorded=len(calls),
        same=_ids(calls) == Counter((tuple(each.prompt_ids), tuple(each.output_ids)) for each in served),
        ids_complete=bool(calls) and all(call.trainable for call in calls),
        wire=tuple(dict.fromkeys(call.dialect for call in calls)),
        calls=tuple(_fact(call) for call in calls),
        rows=session.rows,
        side_calls=dict(Counter(call.kind for call in calls if call.kind != CallKind.MAIN)),
        transcript=session.transcript.verdict,
        differences=tuple(map(str, session.transcript.differences)),
        outside=None if outside is None else tuple(outside),
    )


def _ids(calls: Sequence[Call]) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    return Counter((tuple(call.prompt_ids.tolist()), tuple(call.output_ids.tolist())) for call in calls)


def _fact(call: Call) -> CallFact:
    return CallFact(
        call_id=call.call_id,
        wire=call.dialect,
        kind=call.kind,
        status=call.status,
        prompt_tokens=len(call.prompt_ids),
        output_tokens=len(call.output_ids),
        join=call.join,
        join_cause=call.join_cause,
    )


def keep(facts: Facts) -> None:
    path = _kept(facts.harness)
    write_whole(path, lambda unfinished: unfinished.write_bytes(to_json(facts)))


def kept(harness: str) -> Facts | None:
    """The last check of a harness on this machine; None if there was none that this version of Forge can read."""
    try:
        return msgspec.json.decode(_kept(harness).read_bytes(), type=Facts)
    except (OSError, msgspec.DecodeError):
        return None


def to_json(facts: Facts) -> bytes:
    return msgspec.json.format(msgspec.json.encode({**msgspec.to_builtins(facts), "passed": facts.passed}))


def _kept(harness: str) -> Path:
    return cache_root() / "checks" / f"{harness}.json"
