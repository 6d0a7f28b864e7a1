"""The chat completions wire format, as a byte lane: request and answer are edited, never parsed and written again.

Owns what becomes of a chat request; its answer is ``chat_answer``'s. It must not know which engine it speaks to (the
engine's ``Ask`` says what to add and cut). The one non-obvious fact: what a session lays over a request depends on what
stands around its history alone, so it is worked out once for all requests that are the same there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from msgspec import Raw

from forge.proxy import splice
from forge.proxy.dialects.asked import read_object, wants_stream
from forge.proxy.dialects.base import (
    NO_TARGET,
    Answer,
    Outgoing,
    Overrides,
    Target,
)
from forge.proxy.dialects.chat_answer import StreamAnswer, WholeAnswer, error_body
from forge.proxy.dialects.chat_history import fit, looked_for
from forge.proxy.dialects.hints import member_hints, turn_hints
from forge.proxy.dialects.overlay import collected, decode_member, overlay, sampling
from forge.proxy.engines.base import Ask, Cut, Engine
from forge.proxy.sessions.turns import Asked, Request
from forge.proxy.splice import Shared

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
    pieces: tuple[bytes | memoryview, ...]
    if fitted is not None:
        plan, edits = _plan(asked, engine, overrides, stream, rewritten=True), [*notices, *fitted[1], *plan.edits]
        pieces = (plan.before, fitted[0], plan.after)
    elif not plan.after:
        pieces = (plan.before or body,)
    else:
        start, stop = (0, len(body) - plan.closing) if plan.closing else (asked.start, asked.end)
        pieces = (plan.before, memoryview(body)[start:stop], plan.after)
        shared = Shared(start, stop, len(plan.before))
    if around.hints is None:
        around.hints = member_hints(around.small)
    return Outgoing(
        pieces=pieces,
        edited=pieces[0] is not body,
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
