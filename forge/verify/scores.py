"""Fresh log probs of recorded calls: what a scorer gives, and which calls are given to it.

Pure. Not obvious: a sample is taken stratum by stratum, in the order of a hash, so it is the same every time and the
rare kinds of call are in it.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import numpy as np

from forge.storage.records import Call, LogProbs
from forge.verify.facts import Facts


class Fit(NamedTuple):
    """The temperature that explains the recorded log probs best."""

    temperature: float
    left: float
    """Mean absolute difference that it leaves."""


class Scores(NamedTuple):
    """Of one call's output ids."""

    raw: LogProbs
    """At temperature 1."""
    tempered: LogProbs
    """At the call's own temperature; NaN where it cannot be told."""
    fit: Fit | None
    """Where the scorer can try, and the call's own temperature does not explain them."""


@dataclass(frozen=True, slots=True)
class Serves:
    """Which weights a scorer has."""

    name: str
    version: int | None
    digest: str | None


class Scorer(Protocol):
    serves: Serves

    async def score(self, call: Call, temperature: float) -> Scores: ...

    async def text(self, ids: list[int]) -> str | None:
        """The text of ids, special tokens left in; None where it cannot tell."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    call: Call
    temperature: float
    scores: Scores


def temperature_of(call: Call) -> float:
    """What the engine was asked to sample at; 1 where nothing was said, which is every engine's default."""
    try:
        found = msgspec.json.decode(call.sampling_sent or b"{}", type=dict[str, msgspec.Raw]).get("temperature")
        value = msgspec.json.decode(found, type=float | None) if found is not None else None
    except msgspec.DecodeError:
        value = None
    return 1.0 if value is None else value


def choose(calls: Iterable[Facts], serves: Serves, size: int) -> tuple[set[tuple[str, int]], Counter[str]]:
    """Call ids and choices to score, and how many cannot be, by reason."""
    strata: dict[tuple[object, ...], list[Facts]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    calls = list(calls)
    version = _version(calls, serves)
    for call in calls:
        reason = _unfit(call, serves, version)
        if reason is not None:
            left_out[reason] += 1
            continue
        length = (call.prompt_len + call.output_len).bit_length()
        strata[call.harness, call.dialect, call.kind, call.policy_version_start, call.replica, length].append(call)
    ordered = [sorted(stratum, key=_shuffled) for _, stratum in sorted(strata.items(), key=lambda item: str(item[0]))]
    chosen: list[Facts] = []
    for turn in range(max(map(len, ordered), default=0)):
        chosen += [stratum[turn] for stratum in ordered if turn < len(stratum)]
        if len(chosen) >= size:
            break
    return {(call.call_id, call.choice) for call in chosen[:size]}, left_out


def _version(calls: Iterable[Facts], serves: Serves) -> int | None:
    """The version to score: the one served; where the server names none, the last one of the run."""
    if serves.version is not None or serves.digest is not None:
        return serves.version
    return max((c.policy_version_start for c in calls if c.policy_version_start is not None), default=None)


def _unfit(call: Facts, serves: Serves, version: int | None) -> str | None:
    if not call.trainable:
        return "not trainable"
    if not call.prompt_len or not call.output_len or call.log_probs_len != call.output_len:
        return "without ids or log probs"
    if call.media is not None:
        return "with media"
    if call.policy_version_start != call.policy_version_end:
        return "across a weight update"
    if serves.digest is not None and call.weight_digest is not None:
        return None if call.weight_digest == serves.digest else "of other weights"
    return None if version is None or call.policy_version_start == version else "of another version"


def _shuffled(call: Facts) -> bytes:
    return hashlib.blake2b(f"{call.call_id}/{call.choice}".encode(), digest_size=8).digest()


def off_by(scored: Scored) -> LogProbs:
    """Recorded less fresh, of the tokens that could be told."""
    found: LogProbs = scored.call.output_log_probs - scored.scores.tempered
    told: LogProbs = found[np.isfinite(found)]
    return told
