"""The chat completions wire format, as a byte lane: request and answer are edited, never parsed and written again.

Owns what a chat client sees: the engine's own bytes less what only we asked for. It must not know which engine it
speaks to (the engine's ``Ask`` says what to add and cut). The one non-obvious fact: the finishing chunk may have to
be changed by what follows it (a member that we made ride on our usage chunk), so from it on everything is kept back
here; it could not leave before the engine's end anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.asked import read_object, wants_stream
from forge.proxy.dialects.base import (
    BROKEN_OFF,
    NO_TARGET,
    UNREADABLE_ANSWER,
    Answer,
    Hold,
    Outgoing,
    Overrides,
    Piece,
    Target,
)
from forge.proxy.dialects.chat_history import fit, looked_for
from forge.proxy.dialects.hints import member_hints, turn_hints
from forge.proxy.dialects.overlay import collected, decode_member, overlay, sampling
from forge.proxy.engines.answers import error_text
from forge.proxy.engines.base import Ask, Cut, Engine
from forge.proxy.engines.unstreamed import as_stream
from forge.proxy.sessions.turns import Asked, Request
from forge.proxy.splice import Shared
from forge.proxy.sse import Event, EventTooLarge, Splitter

DONE: Final = b"[DONE]"
CUTTERS: Final = 256
"""Remembered, one for all answers with the same cuts: they remember nothing of them."""
PLANS: Final = 4
"""Remembered of what stands around a history: its session's overrides may change, and policy servers differ."""


class Chat:
    name: str = "chat"
    keepalive: bytes = b": keepalive\n\n"
    content_type_stream: str = "text/event-stream; charset=utf-8"
    passes_break: bool = True

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        asked = read_object(body)
        return prepare(asked, engine=engine, overrides=overrides, stream=wants_stream(asked.around.small))

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        return StreamAnswer(outgoing) if outgoing.stream else WholeAnswer(outgoing)

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        return error_body(code=code, message=message, param=param)

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        return body

    def stream_error(self, *, code: str, message: str, begun: bool = True) -> bytes:
        return b"data: " + error_body(code=code, message=message) + b"\n\n"


def error_body(*, code: str, message: str, param: str | None = None) -> bytes:
    return msgspec.json.encode({"error": {"message": message, "type": code, "param": param, "code": code}})


class Plan(msgspec.Struct):
    """What becomes of a request, but for its history: the same for all that have the same around theirs."""

    engine: Engine
    overrides: Overrides
    stream: bool
    looked_for: int
    """Signs of a history that may have to be edited."""
    before: bytes
    """What is sent before the part of the request that stays, and behind it."""
    after: bytes
    closing: int
    """How far from its end that part ends, where it begins with the request; 0: it is the history, or nothing."""
    ask: Ask
    edits: list[dict[str, Any]]
    model: str | None
    sampling_asked: str | None
    sampling_sent: str | None
    choices: int


def prepare(
    asked: Asked, *, engine: Engine, overrides: Overrides, stream: bool, notices: Sequence[Mapping[str, Any]] = ()
) -> Outgoing:
    """A chat request made ready for the engine: the session's edits, then what we ask for ourselves. ``notices``
    are the edits already made. Raises ``BadRequest``."""
    body, around = asked.body, asked.around
    plan = next((plan for plan in around.plans if _fits(plan, engine, overrides, stream)), None)
    if plan is None:
        plan = _plan(asked, engine, overrides, stream)
        around.plans = [plan, *around.plans[: PLANS - 1]]
    edits = [*notices, *plan.edits]
    fitted = fit(asked.turns, engine.wire) if asked.signs & plan.looked_for else None
    shared: Shared | None = None
    if fitted is not None:
        plan, edits = _plan(asked, engine, overrides, stream, rewritten=True), [*notices, *fitted[1], *plan.edits]
        out = b"".join((plan.before, fitted[0], plan.after))
    elif not plan.after:
        out = plan.before or body
    else:
        start, stop = (0, len(body) - plan.closing) if plan.closing else (asked.start, asked.end)
        out = b"".join((plan.before, memoryview(body)[start:stop], plan.after))
        shared = Shared(start, stop, len(plan.before))
    if around.hints is None:
        around.hints = member_hints(around.small)
    return Outgoing(
        body=out,
        edited=out is not body,
        stream=stream,
        ask=plan.ask,
        model_requested=plan.model,
        sampling_asked=plan.sampling_asked,
        sampling_sent=plan.sampling_sent,
        edits=msgspec.json.encode(edits).decode() if edits else None,
        hints=around.hints | turn_hints(asked.turns),
        shared=shared,
        choices=plan.choices,
    )


def _fits(plan: Plan, engine: Engine, overrides: Overrides, stream: bool) -> bool:
    return plan.engine is engine and plan.stream is stream and plan.overrides == overrides


def _plan(asked: Asked, engine: Engine, overrides: Overrides, stream: bool, *, rewritten: bool = False) -> Plan:
    """``rewritten``: another history will stand in the place of the request's own."""
    given = asked.around.small
    over = overlay(given, overrides)
    sent = _changed(given, over.changes)
    ask = engine.ask(sent, stream=stream, collect=collected(overrides))
    own = given.get("model")
    if "model" in over.changes and own is not None:
        ask = replace(ask, cuts=(*ask.cuts, Cut(b"model", bytes(own), bytes(own))))
    before, after, closing = b"", b"", 0
    if rewritten or any(name in given for name in (*over.changes, *ask.members)):
        before, after = splice.around({**sent, **ask.members}, asked.around.name)
    elif added := {name: value for name, value in over.changes.items() if value is not None} | dict(ask.members):
        closing, after = len(asked.body) - asked.body.rindex(b"}"), splice.addition(asked.body, added)
    model = decode_member(given, "model")
    asked_for = sampling(given)
    return Plan(
        engine=engine,
        overrides=overrides,
        stream=stream,
        looked_for=looked_for(engine.wire),
        before=before,
        after=after,
        closing=closing,
        ask=ask,
        edits=over.edits,
        model=model if isinstance(model, str) else None,
        sampling_asked=asked_for,
        sampling_sent=sampling(sent) if over.changes else asked_for,
        choices=_choice_count(sent),
    )


def _changed(asked: Mapping[str, bytes | Raw], changes: Mapping[str, bytes | None]) -> dict[str, bytes | Raw]:
    kept: dict[str, bytes | Raw] = {name: value for name, value in asked.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}


def _choice_count(request: Mapping[str, bytes | Raw]) -> int:
    """What the engine would refuse is left to it."""
    count = bytes(request.get("n", b""))
    return int(count) if count.isdigit() and 0 < len(count) < 5 and int(count) else 1


@lru_cache(maxsize=CUTTERS)
def _of_whole(cuts: tuple[Cut, ...]) -> splice.Cutter:
    return splice.Cutter((cut.key, cut.whole) for cut in cuts)


@lru_cache(maxsize=CUTTERS)
def _of_stream(cuts: tuple[Cut, ...]) -> splice.Cutter:
    return splice.Cutter((cut.key, cut.stream) for cut in cuts)


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
        self.finish_reason: str | None = None
        self.error: str | None = None

    @property
    def complete(self) -> bool:
        return len(self._finished) >= self._choices and self.error is None

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        if self.error is None:
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

    def _finish(self, raw: bytes, document: bytes, found: splice.Found) -> None:
        for choice in found.choices or ():
            if choice.finish_reason:
                self.finish_reason = self.finish_reason or choice.finish_reason
                self._finished.add(choice.index)
        self._kept.append((raw, document))

    def _give(self, raw: bytes) -> None:
        if self._closing or self._finished:
            self._kept.append((raw, None))
        else:
            self._out.append(raw)

    def _release(self, added: Mapping[str, bytes]) -> None:
        """Lets go what was kept, ``added`` appended to the finishing chunks."""
        for raw, document in self._kept:
            if document is not None and added:
                raw = raw.replace(document, splice.append(document, added))
            self._closing.append(raw)
        self._kept.clear()

    def _fail(self, message: str) -> None:
        self._release({})
        self.error = message
        self._closing.append(Chat().stream_error(code="upstream_error", message=message))

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
