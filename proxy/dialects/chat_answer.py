"""A chat answer on its way back: the engine's own bytes less what only we asked for, whole or event by event.

Must not know the request, nor which engine answers: the engine's ``Ask`` says what to cut. The one non-obvious fact:
the finishing chunk may have to be changed by what follows it (a member that we made ride on our usage chunk), so from
it on everything is kept back here; it could not leave before the engine's end anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.cutter import Cutter, Found
from forge.proxy.dialects.base import BROKEN_OFF, UNREADABLE_ANSWER, Hold, Outgoing, Piece
from forge.proxy.engines.answers import error_text
from forge.proxy.engines.base import Ask, Cut
from forge.proxy.engines.unstreamed import as_stream
from forge.proxy.sse import Event, EventTooLarge, Splitter
from forge.proxy.template import Template

DONE: Final = b"[DONE]"
LESSONS: Final = 8
"""Of one answer, for what its events have in common: where they change all the time there is nothing to be learned."""
CUTTERS: Final = 256
"""Remembered, one for all answers with the same cuts: they remember nothing of them."""


def error_body(*, code: str, message: str, param: str | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": code, "param": param, "code": code}})


@lru_cache(maxsize=CUTTERS)
def _of_whole(cuts: tuple[Cut, ...]) -> Cutter:
    return Cutter((cut.key, cut.whole) for cut in cuts)


@lru_cache(maxsize=CUTTERS)
def _of_stream(cuts: tuple[Cut, ...]) -> Cutter:
    return Cutter((cut.key, cut.stream) for cut in cuts)


class WholeAnswer:
    """A body that is held entire."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._cutter = _of_whole(outgoing.ask.cuts)
        self._chunks: list[bytes] = []
        self.complete = False
        self.finish_reason: str | None = None
        self.error: str | None = None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        self._chunks.append(chunk)
        return ()

    def finish(self) -> Sequence[Piece]:
        body = b"".join(self._chunks)
        try:
            body, found = self._cutter.cut(body)
        except splice.UNREADABLE as failure:
            self.error = f"{UNREADABLE_ANSWER}: {failure}"
            return (Piece(error_body(code="upstream_error", message=self.error), Hold.CLOSE),)
        finishes = [choice.finish_reason for choice in found.choices or ()]
        self.finish_reason = next((finish for finish in finishes if finish), None)
        if found.error is not None:
            self.error = error_text(found.error)
        self.complete = bool(finishes) and all(finishes) and self.error is None
        return (Piece(body, Hold.CLOSE),)


class StreamAnswer:
    """Events, each forwarded as it came less what is cut."""

    def __init__(self, outgoing: Outgoing) -> None:
        self._ask: Ask = outgoing.ask
        self._choices = outgoing.choices
        self._cutter = _of_stream(outgoing.ask.cuts)
        self._splitter = Splitter()
        self._finished: set[Any] = set()
        self._kept: list[tuple[bytes, bytes | None]] = []
        """From the first finishing chunk on: the event, and its document if it is a finishing one."""
        self._out: list[bytes] = []
        self._closing: list[bytes] = []
        self._done = b""
        self._received = False
        self._template: Template | None = None
        """Of events like one that was given as soon as it came; None once they have to be kept."""
        self._lessons = LESSONS
        self.finish_reason: str | None = None
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        return len(self._finished) >= self._choices and self.error is None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        if self.error is None:
            known = self._template if self._splitter.between else None
            if known is not None and (cut := known.fill(chunk)) is not None:
                return (Piece(cut),)
            try:
                for event in self._splitter.feed(chunk):
                    self._take(event)
            except EventTooLarge as failure:
                self._fail(str(failure))
        return self._pieces()

    def finish(self) -> Sequence[Piece]:
        if self.error is None:
            self._take_rest()
        self._release({})
        if not self.complete and self.error is None:
            self._fail(BROKEN_OFF)
        if self._done:
            self._closing.append(self._done)
        return self._pieces()

    def _take_rest(self) -> None:
        """The last event of a stream that ended without an empty line, or a whole body where a stream was due."""
        rest = self._splitter.rest
        if not self._received and rest.lstrip().startswith(b"{"):
            try:
                rest = as_stream(rest)
            except ValueError:
                return
            for event in Splitter().feed(rest):
                self._take(event)
        elif (last := last_event(self._splitter)) is not None:
            self._take(last)

    def _take(self, event: Event) -> None:
        if event.data is None:
            self._give(event.raw)
            return
        if event.data == DONE:
            # Kept until the end of the body: where no finish came before it, an error event must.
            self._done = event.raw
            return
        self._received = True
        try:
            document, found = self._cutter.cut(event.data)
            counts = found.usage is not None and not found.choices and self._ask.drop_usage_chunk
            usage = splice.members(event.data) if counts else {}
        except splice.UNREADABLE:
            # Nothing of ours can be in what is no answer: it goes as it came.
            self._give(event.raw)
            return
        if found.error is not None:
            self._release({})
            self.error = error_text(found.error)
            self._closing.append(event.raw)
            return
        if counts:
            self._release({name: bytes(usage[name]) for name in self._ask.usage_members if name in usage})
            return
        raw = event.raw if document is event.data else event.with_data(document)
        if any(choice.finish_reason for choice in found.choices or ()):
            self._finish(raw, document, found)
        elif not (self._ask.drop_empty_chunks and found.empty):
            self._give(raw)
            if event.start > 0 and self._lessons and not (self._closing or self._finished):
                self._learn(event, found)

    def _learn(self, event: Event, found: Found) -> None:
        """The next event is mostly like this one, which was given."""
        assert event.data is not None
        self._lessons -= 1
        if (places := self._cutter.places(event.data, found)) is not None:
            there = [(event.start + start, event.start + end, instead) for start, end, instead in places]
            self._template = Template(event.raw, there)

    def _finish(self, raw: bytes, document: bytes, found: Found) -> None:
        for choice in found.choices or ():
            if choice.finish_reason:
                self.finish_reason = self.finish_reason or choice.finish_reason
                self._finished.add(choice.index)
        self._template = None
        self._kept.append((raw, document))

    def _give(self, raw: bytes) -> None:
        if self._closing or self._finished:
            self._kept.append((raw, None))
        else:
            self._out.append(raw)

    def _release(self, added: Mapping[str, bytes]) -> None:
        """Lets go what was kept, ``added`` appended to the finishing chunks."""
        self._template = None
        for raw, document in self._kept:
            if document is not None and added:
                raw = raw.replace(document, splice.append(document, added))
            self._closing.append(raw)
        self._kept.clear()

    def _fail(self, message: str) -> None:
        self._release({})
        self.error = message
        self._closing.append(b"data: " + error_body(code="upstream_error", message=message) + b"\n\n")

    def _pieces(self) -> Sequence[Piece]:
        pieces: list[Piece] = []
        if self._out:
            pieces.append(Piece(b"".join(self._out)))
            self._out = []
        if self._closing:
            pieces.append(Piece(b"".join(self._closing), Hold.CLOSE))
            self._closing = []
        return pieces


def last_event(splitter: Splitter) -> Event | None:
    """The event of a stream that ended without its last empty line, if all of it has come."""
    event = splitter.last()
    if event is None or not event.data:
        return None
    try:
        msgspec.json.decode(event.data, type=Raw)
    except splice.UNREADABLE:
        return event if event.data == DONE else None
    return event
