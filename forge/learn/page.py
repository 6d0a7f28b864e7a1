"""The courses as a table for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from forge.learn.experiment import Course


def write(data: Path, courses: Sequence[Course]) -> str:
    """The table, as Markdown; it is in ``DATA/learn.md`` too."""
    lines = [
        "| course | held out, before | after | batches | sessions | minutes |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for each in courses:
        first, last = each.held_out[0], each.held_out[-1]
        lines.append(
            f"| {each.name} | {first.reward:.2f} | {last.reward:.2f} | {last.batch} "
            f"| {len(each.trained)} | {each.seconds / 60:.1f} |"
        )
    text = "\n".join(lines) + "\n"
    (data / "learn.md").write_text(text)
    return text
