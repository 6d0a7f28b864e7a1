"""The terminal that commands write to: what models, harnesses and engines said cannot command it.

The one non-obvious fact: rich writes the text it is given as it is, so an escape sequence in a model's answer would
reach the terminal, which may then write to the clipboard or show what is not there. Rich's own sequences are made from
styles, later, and stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from forge.proxy.redaction import harmless

PIPED_WIDTH: Final = 240
"""Columns where there is no terminal: a table in a file or a pipe is not cut."""


class Terminal(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            clean = segment.text if segment.control else harmless(segment.text)
            yield segment if clean == segment.text else Segment(clean, segment.style)


def console() -> Console:
    """Where tables are printed."""
    found = Terminal()
    return found if found.is_terminal else Terminal(width=PIPED_WIDTH)
