"""One answer as it grows: its text, its stop rules, its version spans. Pure, and fed by the scheduler's thread.

Not obvious: a stop string cuts the text but not the ids, since the ids are what the model drew; so text that may yet
turn out to be the start of a stop string is held back, while each id goes out with the step that drew it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Speaks(Protocol):
    """A detokenizer."""

    def feed(self, index: int) -> str: ...

    def finish(self) -> str: ...


class Span(NamedTuple):
    """Output ids [start, end) were drawn under this weight version."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StopRules:
    max_tokens: int
    strings: Sequence[str] = ()
    ids: frozenset[int] = frozenset()
    """Stop ids the request named; reported as the stop reason."""
    eos: frozenset[int] = frozenset()
    include: bool = False
    """Keep the stop string in the text."""


class Said(NamedTuple):
    text: str
    finish: str | None
    stop: str | int | None
    """The stop string or the named stop id that ended it."""


class Answer:
    def __init__(self, words: Speaks, rules: StopRules) -> None:
        self._words = words
        self._rules = rules
        self._held = ""
        self.ids: list[int] = []
        self.spans: list[Span] = []

    def feed(self, index: int, version: str) -> Said:
        self.ids.append(index)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = self.spans[-1]._replace(end=len(self.ids))
        else:
            self.spans.append(Span(version, len(self.ids) - 1, len(self.ids)))
        if index in self._rules.eos:
            return Said(self.flush(), "stop", None)
        if index in self._rules.ids:
            return Said(self.flush(), "stop", index)
        self._held += self._words.feed(index)
        found = min(((self._held.find(s), s) for s in self._rules.strings if s in self._held), default=None)
        if found is not None:
            at, string = found
            return Said(self._held[: at + len(string) if self._rules.include else at], "stop", string)
        if len(self.ids) >= self._rules.max_tokens:
            return Said(self.flush(), "length", None)
        keep = min(len(self._held), max((len(s) - 1 for s in self._rules.strings), default=0))
        while keep and not any(s.startswith(self._held[-keep:]) for s in self._rules.strings):
            keep -= 1
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        return Said(text, None, None)

    def flush(self) -> str:
        """All text that was held back."""
        text, self._held = self._held + self._words.finish(), ""
        return text
