"""What learns of a batch and what does not, in words."""

from __future__ import annotations

from collections import Counter

from forge.trainer.advantage import Left, Selection
from forge.trainer.config import StepStats


def account(chosen: Selection) -> str:
    """What learns and what does not, with its reasons."""
    kept = (
        f"{len(chosen.rows)} rows of {len(chosen.advantages)} sessions in {chosen.groups_kept} groups, "
        f"{sum(chosen.tokens.values())} tokens"
    )
    left = [
        f"{_counts(dropped)} {name}"
        for name, dropped in (
            ("groups", chosen.groups_dropped),
            ("sessions", chosen.sessions_dropped),
            ("rows", chosen.rows_dropped),
        )
        if dropped
    ]
    return f"{kept}; left out: {'; '.join(left)}" if left else kept


def _counts(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))


def hint(chosen: Selection) -> str:
    if not (chosen.rewards or chosen.sessions_dropped or chosen.rows_dropped):
        return "no call of these sessions may be trained: forge stats RUN says why"
    if chosen.rows_dropped[Left.STALE] or chosen.rows_dropped[Left.NEWER]:
        return "sample sessions with the current weights (forge run), or allow older ones: --max-staleness N"
    if chosen.groups_dropped[Left.NO_SPREAD]:
        return (
            "all rewards of a group are equal: take more sessions per task (--group-size), or tasks that fail at times"
        )
    return "group sessions of one task and grade them: forge run --group-size N with a grader"


def line(stats: StepStats) -> str:
    return (
        f"loss {stats.loss:+.5f}, gradient {stats.grad_norm:.4f}, entropy {stats.entropy:.3f}, "
        f"ratio {stats.ratio_mean:.4f} (max {stats.ratio_max:.3f}), "
        f"clipped {stats.clip_low_fraction:.1%} low {stats.clip_high_fraction:.1%} high, "
        f"recorded log probs off by {stats.delta_log_prob_mean:.1e} (max {stats.delta_log_prob_max:.1e})"
    )
