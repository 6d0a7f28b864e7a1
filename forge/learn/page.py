"""What came of the courses, for people: a table as Markdown and the curves as a picture, beside the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from forge.learn.experiment import Course
from forge.report.chart import Points, picture

TABLE: Final = "learn.md"
PICTURE: Final = "learn.svg"
HEAD: Final = "| course | held out, before | after | mean reward of the last batch | batches | minutes |"
RULE: Final = "| --- | ---: | ---: | ---: | ---: | ---: |"


def write(data: Path, courses: Sequence[Course]) -> str:
    """Gives the table."""
    text = "\n".join([HEAD, RULE, *map(_row, courses)]) + "\n"
    (data / TABLE).write_text(text)
    curves: dict[str, Points] = {
        each.name: [(point.batch, point.reward) for point in each.held_out] for each in courses
    }
    (data / PICTURE).write_text(picture("Mean reward on held-out instances, by batches learned from", curves))
    return text


def _row(course: Course) -> str:
    first, last = course.held_out[0], course.held_out[-1]
    return (
        f"| {course.name} | {first.reward:.2f} | {last.reward:.2f} | {course.trained[-1]:.2f} "
        f"| {len(course.trained)} | {course.seconds / 60:.0f} |"
    )
