"""Recorded against fresh log probs: how far apart, and what the shape of the difference says of its cause.

Pure. The causes are tried from the most telling shape to the least. Not obvious: a few bad calls are found against the
run's own median, so a difference far below any engine's noise limit is still seen where all other calls are exact.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from forge.storage.records import LogProbs
from forge.verify.report import Drift, Finding, Kind, Thresholds, finding
from forge.verify.scores import Scored, off_by

ROW_MEAN: Final = 0.1
ROW_SUM: Final = 2.0
"""Nats: a call is off above this mean, if its differences also add up to this much; few tokens prove little."""
OUTLIER_MEAN: Final = 0.005
OUTLIER_TIMES: Final = 50.0
"""A call is off, too, above this mean and this many times the run's median."""
EXPLAINS: Final = 0.25
"""A cause explains a difference if it leaves no more than this share of it."""
IMPOSSIBLE: Final = -0.7
"""A token of this fresh log prob or less, recorded as exactly 0: no cut of the distribution does that."""
FIT_TOKENS: Final = 8
"""One number always explains one token."""
SHIFT_TOKENS: Final = 6
CUT_TOKENS: Final = 30
CUT_MEAN: Final = 0.003
CUT_SIDED: Final = 0.9
CUT_SIDED_NOISY: Final = 0.3
"""Mean difference over mean absolute difference. A cut of the distribution only ever raises what is left; noise goes
both ways, and other weights do too."""
CUT_SIGMAS: Final = 5.0


def examine(
    scored: Sequence[Scored], limits: Thresholds, by: str, left_out: Mapping[str, int]
) -> tuple[Drift, list[Finding]]:
    """The drift of the scored calls, and a finding per cause."""
    told = [(each, off) for each in scored if len(off := off_by(each))]
    pooled = np.concatenate([off for _, off in told]) if told else np.empty(0, dtype=np.float32)
    size = np.abs(pooled)
    drift = Drift(
        by=by,
        calls=len(told),
        tokens=len(pooled),
        mean=float(size.mean()) if len(size) else 0.0,
        p99=float(np.quantile(size, 0.99)) if len(size) else 0.0,
        max=float(size.max(initial=0.0)),
        unscored_tokens=sum(len(each.call.output_ids) for each in scored) - len(pooled),
        left_out=dict(left_out),
    )
    beyond = drift.mean > limits.mean or drift.p99 > limits.p99
    median = float(np.median([np.abs(own).mean() for _, own in told])) if told else 0.0
    apart = [each for each, own in told if _is_off(own, median) or _temperature_explains(each)]
    every = [each for each, _ in told]
    findings = _causes(apart, every)
    if beyond and not findings:
        findings = _causes(every, every)
    if beyond:
        text = (
            f"off by {drift.mean:.3g} nats on average and {drift.p99:.3g} at the 99th percentile; "
            f"{limits.mean:g} and {limits.p99:g} are allowed"
        )
        findings.append(Finding(Kind.DRIFT, text))
    return drift, findings


def _is_off(own: LogProbs, median: float) -> bool:
    mean = float(np.abs(own).mean())
    return (mean > ROW_MEAN and np.abs(own).sum() > ROW_SUM) or mean > max(OUTLIER_MEAN, OUTLIER_TIMES * median)


def _temperature_explains(scored: Scored) -> bool:
    """However small the difference: no noise goes away at another temperature."""
    own = np.abs(off_by(scored))
    if len(own) < FIT_TOKENS or own.mean() <= OUTLIER_MEAN:
        return False
    return _cause(scored) in (Kind.RAW, Kind.TEMPERATURE)


def _causes(off: Sequence[Scored], every: Sequence[Scored]) -> list[Finding]:
    by_cause: dict[Kind | None, list[Scored]] = defaultdict(list)
    for each in off:
        by_cause[_cause(each)].append(each)
    rest, cut = by_cause[None], by_cause[Kind.CUT]
    # A cut shows in every call, and in many of them by too little, or in too few tokens, to be seen there.
    sided = [each for each in rest if _is_sided(off_by(each))]
    quiet = [each for each in every if each not in off]
    pooled = np.concatenate([off_by(each) for each in [*cut, *sided, *quiet]] or [np.empty(0, np.float32)])
    is_cut = bool(cut) or _is_cut(pooled, noisy=not rest)
    if is_cut:
        cut, rest = [*cut, *sided], [each for each in rest if each not in sided]
    fits = [each.scores.fit.temperature for each in by_cause[Kind.TEMPERATURE] if each.scores.fit]
    at = f" (nearer {np.median(fits):.2f} than {by_cause[Kind.TEMPERATURE][0].temperature:.2f})" if fits else ""
    texts = {
        Kind.PADDED: "log probs of exactly 0 stand where the policy gave none",
        Kind.SHIFTED: "log probs belong to the ids beside them",
        Kind.RAW: "log probs are raw: those of temperature 1, not of the temperature that was sampled at",
        Kind.TEMPERATURE: f"sampled at another temperature than the rows say{at}",
    }
    found = [each for kind, text in texts.items() for each in finding(kind, text, _ids(by_cause[kind]))]
    if is_cut:
        found.append(_cut_finding(pooled, cut))
    return found + _weights(rest, every)


def _cause(scored: Scored) -> Kind | None:
    recorded, (raw, fresh, fit) = scored.call.output_log_probs, scored.scores
    mean = float(np.abs(off_by(scored)).mean())
    if ((recorded == 0.0) & (fresh < IMPOSSIBLE)).any():
        return Kind.PADDED
    if len(recorded) >= SHIFT_TOKENS:
        earlier, later = _apart(recorded[1:], fresh[:-1]), _apart(recorded[:-1], fresh[1:])
        if min(earlier, later) < EXPLAINS * mean:
            return Kind.SHIFTED
    if scored.temperature != 1.0 and _apart(recorded, raw) < EXPLAINS * mean:
        return Kind.RAW
    if fit is not None and len(recorded) >= FIT_TOKENS and fit.left < EXPLAINS * mean:
        return Kind.TEMPERATURE
    return Kind.CUT if _is_cut(off_by(scored), noisy=False) else None


def _apart(one: LogProbs, other: LogProbs) -> float:
    off = np.abs(one - other)
    told = off[np.isfinite(off)]
    return float(told.mean()) if len(told) else math.inf


def _is_cut(off: LogProbs, *, noisy: bool) -> bool:
    """``noisy``: nothing else is wrong, so an engine's noise may hide how one-sided it is."""
    if len(off) < CUT_TOKENS:
        return False
    mean, size = float(off.mean()), float(np.abs(off).mean())
    clear = mean > CUT_MEAN and mean > CUT_SIGMAS * float(off.std()) / math.sqrt(len(off))
    return clear and (_is_sided(off) or (noisy and size < ROW_MEAN and mean > CUT_SIDED_NOISY * size))


def _is_sided(off: LogProbs) -> bool:
    return float(off.mean()) > CUT_SIDED * float(np.abs(off).mean())


def _cut_finding(off: LogProbs, calls: Sequence[Scored]) -> Finding:
    kept = math.exp(-float(np.quantile(off, 0.99)))
    text = (
        "sampled from a cut distribution, which the rows do not tell of: the log probs are too high, as if only "
        f"{kept:.0%} of the mass were kept (top_p, top_k or min_p in the server's defaults)"
    )
    found = finding(Kind.CUT, text, _ids(calls))
    return found[0] if found else Finding(Kind.CUT, text)


def _weights(rest: Sequence[Scored], every: Sequence[Scored]) -> list[Finding]:
    """What nothing else explains: other weights throughout, or only under some prompts."""
    found: list[Finding] = []
    all_of, off_of = Counter(map(_served, every)), Counter(map(_served, rest))
    for served, count in sorted(off_of.items(), key=str):
        version, replica = served
        name = f"version {version}" + (f" on {replica}" if replica else "")
        calls = _ids([each for each in rest if _served(each) == served])
        if count == all_of[served]:
            text = f"other weights sampled the calls of {name}, or at another temperature"
            found += finding(Kind.WEIGHTS, text, calls)
        else:
            text = (
                f"{count} of {all_of[served]} calls of {name} do not fit, and the others do: their prompts were read "
                "with other weights (a prefix cache kept over a weight change), or their context is not as recorded"
            )
            found += finding(Kind.STALE_PREFIX, text, calls)
    return found


def _served(scored: Scored) -> tuple[int | None, str]:
    return scored.call.policy_version_start, scored.call.replica


def _ids(calls: Sequence[Scored]) -> list[str]:
    return [each.call.call_id for each in calls]
