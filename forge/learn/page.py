"""What came of the courses, for people: a table as Markdown and the curves as a picture, beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forge.learn.experiment import Course
from forge.report.chart import Points, picture

TABLE: Final = "learn.md"
PICTURE: Final = "learn.svg"
TITLE: Final = "Mean reward of each batch's sessions, by batches learned from; last: held-out sessions"


def write(data: Path, courses: Sequence[Course]) -> str:
    """Gives the table."""
    after = [point.batch for point in courses[0].held_out]
    head = ["course", *(f"held out after {batches} batches" for batches in after), "minutes"]
    rule = ["---", *["---:"] * (len(head) - 1)]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *map(_row, courses))) + "\n"
    (data / TABLE).write_text(text)
    (data / PICTURE).write_text(picture(TITLE, {each.name: _curve(each) for each in courses}))
    return text


def _row(course: Course) -> list[str]:
    rewards = [f"{point.reward:.2f}" for point in course.held_out]
    return [course.name, *rewards, f"{course.seconds / 60:.0f}"]


def _curve(course: Course) -> Points:
    return [*enumerate(course.trained), (course.held_out[-1].batch, course.held_out[-1].reward)]
