"""The gate before a gradient: a run whose recording does not hold together is not learned from.

Runs the checks of ``forge verify`` that need no model, which read narrow columns and the training rows: seconds for a
run that trains for minutes. Whether the log probs are those of the weights is ``forge verify --model``'s to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from forge.storage.dataset import Dataset
from forge.storage.errors import Untrainable
from forge.verify.audit import recorded
from forge.verify.report import Level


def require_sound(dataset: Dataset, runs: Iterable[str], recipe: str) -> None:
    """Raises ``Untrainable`` for the first run that fails, with what was found."""
    for run in runs:
        failed = [each for each in recorded(dataset, run, recipe).findings if each.level is Level.FAIL]
        if failed:
            said = "; ".join(f"{each.kind}: {each.text} ({', '.join(each.where[:3])})" for each in failed)
            raise Untrainable(
                f"run {run} fails verification: {said}",
                f"look at it: forge verify {run} --data {dataset.data}; to learn from it all the same: --unverified",
            )


def why_no_samples(dataset: Dataset, runs: Iterable[str]) -> str:
    """What became of the calls of runs that have no training row."""
    reasons: Counter[str] = Counter()
    for run in runs:
        for table in dataset.call_tables(["trainable", "untrainable_reason"], run):
            for row in table.to_pylist():
                reasons["trainable" if row["trainable"] else row["untrainable_reason"] or "unknown"] += 1
    return ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
