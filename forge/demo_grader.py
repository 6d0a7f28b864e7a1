"""The demo's grader: rewards plain words. It is copied alone into the grader's sandbox, so it imports no forge."""

from __future__ import annotations

import re

SHORT = 4
"""Letters of a word that still counts as plain."""


def plain_words(output: str) -> dict[str, object]:
    """The share of words of at most ``SHORT`` letters in what the agent said; 0 if it said none.

    A continuous number, so that sampled answers differ in it: what a demonstration of learning needs.
    """
    words = re.findall(r"[A-Za-z]+", output)
    share = sum(len(word) <= SHORT for word in words) / len(words) if words else 0.0
    return {"reward": share, "components": {"words": float(len(words))}}
