"""What the shape of a difference says, on numbers made for it; real ones are in test_scored.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forge.storage.dataset import Dataset
from forge.verify.drift import examine
from forge.verify.facts import facts_of, longest_zeros
from forge.verify.report import Finding, Kind, Thresholds
from forge.verify.scores import Fit, Scored, Scores, Serves, choose
from tests.verify.made import RUN, call, write

RNG = np.random.default_rng(5)


def scored(
    number: int, off: np.ndarray, *, fit: Fit | None = None, raw: np.ndarray | None = None, **said: object
) -> Scored:
    """A call whose recorded log probs are ``off`` from the fresh ones."""
    fresh = -1.5 - RNG.exponential(1.0, len(off))
    one = call("s", number, [1, 2], range(3, 3 + len(off)), output_log_probs=(fresh + off).astype(np.float32))
    scores = Scores((fresh if raw is None else raw).astype(np.float32), fresh.astype(np.float32), fit)
    return Scored(replace(one, **said), 1.0 if raw is None else 0.7, scores)  # type: ignore[arg-type]


def noise(size: float, tokens: int = 40) -> np.ndarray:
    return RNG.normal(0.0, size, tokens)


def found(calls: Sequence[Scored]) -> dict[Kind, Finding]:
    return {each.kind: each for each in examine(calls, Thresholds(), "a test", {})[1]}


@pytest.mark.parametrize("size", [0.0, 1e-5, 0.03])
def test_an_engine_s_own_noise_is_no_fault(size: float) -> None:
    assert found([scored(n, noise(size)) for n in range(10)]) == {}


def test_other_weights_on_one_replica() -> None:
    calls = [scored(n, noise(1e-5), replica="one") for n in range(4)]
    wrong = [scored(n, noise(0.4), replica="two") for n in range(4, 7)]
    off = found([*calls, *wrong])
    assert off[Kind.WEIGHTS].where == ("s-4", "s-5", "s-6")
    assert "version 1 on two" in off[Kind.WEIGHTS].text
    assert Kind.STALE_PREFIX not in off


def test_a_few_calls_are_seen_far_below_an_engine_s_noise() -> None:
    calls = [scored(n, noise(1e-5)) for n in range(6)]
    assert found([*calls, scored(6, noise(0.02))]).keys() == {Kind.STALE_PREFIX}


def test_a_temperature_is_named_however_near() -> None:
    off = found([scored(n, noise(0.035), fit=Fit(0.95, 1e-5)) for n in range(4)])
    assert off.keys() == {Kind.TEMPERATURE}
    assert "nearer 0.95 than 1.00" in off[Kind.TEMPERATURE].text
    assert found([scored(n, noise(0.035, 2), fit=Fit(0.9, 0.0)) for n in range(4)]) == {}


def test_raw_log_probs_of_a_cooled_call() -> None:
    calls = []
    for number in range(4):
        one = scored(number, noise(0.08))
        calls.append(Scored(one.call, 0.7, one.scores._replace(raw=one.call.output_log_probs)))
    assert found(calls).keys() == {Kind.RAW, Kind.DRIFT} or found(calls).keys() == {Kind.RAW}


@pytest.mark.parametrize("engine_noise", [0.0, 0.01])
def test_a_cut_is_one_sided(engine_noise: float) -> None:
    calls = [scored(n, RNG.uniform(0, 0.09, 12) + noise(engine_noise, 12)) for n in range(20)]
    off = found(calls)
    assert off.keys() == {Kind.CUT}
    assert "9" in off[Kind.CUT].text
    hard = found([scored(n, RNG.uniform(0, 0.7, 12)) for n in range(20)])
    assert hard.keys() == {Kind.CUT, Kind.DRIFT}


def test_tokens_that_no_one_could_tell_are_counted_and_no_more() -> None:
    off = noise(1e-5)
    off[::2] = np.nan
    drift, findings = examine([scored(0, off)], Thresholds(), "a test", {"of other weights": 3})
    assert (drift.tokens, drift.unscored_tokens, drift.left_out, findings) == (20, 20, {"of other weights": 3}, [])
    nothing, findings = examine([], Thresholds(), "a test", {})
    assert (nothing.tokens, nothing.max, findings) == (0, 0.0, [])


def test_what_is_allowed_can_be_said() -> None:
    calls = [scored(n, noise(0.02)) for n in range(6)]
    drift, findings = examine(calls, Thresholds(mean=0.001), "a test", {})
    assert {each.kind for each in findings} == {Kind.WEIGHTS, Kind.DRIFT}
    assert 0.01 < drift.mean < 0.03 < drift.p99


def test_a_sample_holds_some_of_every_stratum(tmp_path: Path) -> None:
    calls = [call(f"m{n}", n, [1, 2], [3, 4]) for n in range(50)]
    calls += [call("t", 60, [1, 2], [3, 4], kind="title"), call("g", 61, [1, 2], [3, 4], dialect="gemini")]
    calls += [call("v", 62, [1], [2], policy_version_start=2, policy_version_end=2)]
    calls += [call("l", 63, list(range(2000)), [2]), call("h", 64, [1, 2], [3, 4], harness="codex")]
    write(tmp_path, {each.session_id: [each] for each in calls})
    rows = list(facts_of(Dataset(tmp_path), RUN))
    chosen, left_out = choose(rows, Serves("x", 1, None), 8)
    assert {("t-60", 0), ("g-61", 0), ("l-63", 0), ("h-64", 0)} < chosen
    assert (len(chosen), left_out) == (8, {"of another version": 1})
    assert choose(list(reversed(rows)), Serves("x", 1, None), 8)[0] == chosen
    assert choose(rows, Serves("x", None, None), 8)[0] == {("v-62", 0)}, "the last version where the server names none"


@pytest.mark.parametrize(("values", "longest"), [([], 0), ([0], 1), ([-1, 0, 0, -1, 0], 2), ([0, 0, 0], 3), ([-1], 0)])
def test_stretches_of_zeros(values: list[float], longest: int) -> None:
    assert longest_zeros(np.asarray(values, dtype=np.float32)) == longest
