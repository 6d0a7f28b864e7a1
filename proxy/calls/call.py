"""One call's path: accepted by its ``open`` frame, asked of an engine, streamed back, ended by its ``close`` frame.

Owns the order that the promises need: ``open`` before the engine is called, ``data`` before a piece that can be
acted on, ``close`` before the last one. Every way out, a vanished client included, writes exactly one ``close``.
Knows dialects and engines by their Protocols only.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field, replace
from typing import Final

from forge.proxy.calls.asking import ERROR_TEXT, UNKNOWN_TO_IT, Asking, Failed
from forge.proxy.calls.continuation import Continuation, able
from forge.proxy.calls.delivery import ClientLeft, Delivery
from forge.proxy.calls.ending import close_frame, ended
from forge.proxy.calls.passage import Passage
from forge.proxy.config import Limits
from forge.proxy.dialects.base import ABORT, ABORTED, CHAT_PATH, Answer, Dialect, Outgoing
from forge.proxy.dialects.engine_errors import read_error
from forge.proxy.dialects.overlay import limit_of
from forge.proxy.door.request import Request
from forge.proxy.metrics import Metrics
from forge.proxy.recording.recorder import Recording
from forge.proxy.upstreams.client import BrokeOff, Reply, Silent
from forge.storage.frames import Close
from forge.storage.journal import JournalFull
from forge.storage.records import CallStatus

log = logging.getLogger(__name__)

STREAM_TYPE: Final = "text/event-stream"
BODY_TYPES: Final = (STREAM_TYPE, "application/json")
TOO_LONG: Final = 400
"""Among other things: the prompt and the output tokens asked for do not fit the context together."""
ABORTED_CODE: Final = "generation_aborted"
LEFT: Final = "the client left before the end"
OK: Final = CallStatus.OK.value
CALL_HEADER: Final = "X-Forge-Call-Id"


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One accepted call."""

    request: Request
    dialect: Dialect
    outgoing: Outgoing
    asking: Asking
    recording: Recording
    began_us: int
    limits: Limits = field(init=False)
    metrics: Metrics = field(init=False)
    delivery: Delivery = field(init=False)
    continuation: Continuation | None = None
    """Where the answer may have been given up."""
    engine_status: int | None = None
    content_type: str = ""
    http_status: int | None = None
    unfit_limit: int | None = None
    """Output tokens that did not fit beside the prompt."""

    def __post_init__(self) -> None:
        self.limits, self.metrics = self.asking.limits, self.asking.metrics
        self.delivery = Delivery(self.request, self.recording)

    async def run(self) -> None:
        """Raises ``ClientLeft`` once the call is closed as aborted; a cancelled task does the same."""
        why = LEFT
        try:
            return await self._run()
        except JournalFull as error:
            return await self._withhold(error)
        except asyncio.CancelledError as cut:
            why = str(cut.args[0]) if cut.args else LEFT
            raise
        except ClientLeft:
            raise
        except Exception as error:
            # The boundary of a call: a fault of ours is this call's error, never its client's doing.
            log.exception("call failed inside the proxy: call_id=%s", self.recording.call_id)
            return await self._broken(error)
        finally:
            if not self.recording.closed:
                self._close_quietly(CallStatus.ABORTED, why)
            if self.continuation is not None:
                self.continuation.let_go()

    async def _run(self) -> None:
        try:
            reply = await self._ask()
        except Failed as failed:
            return await self._fail(failed)
        try:
            self.engine_status, self.content_type = reply.status, reply.content_type
            if reply.status != 200:
                return await self._engine_error(reply)
            if reply.content_type not in BODY_TYPES:
                return await self._fail(self._foreign(reply))
            if self.outgoing.stream:
                return await self._stream(reply)
            return await self._whole(reply)
        finally:
            self.asking.end(reply)

    async def _ask(self) -> Reply:
        """Raises ``Failed``."""
        path = self.outgoing.path
        reply = await self.asking.send(path, self.outgoing.pieces)
        if reply.status != TOO_LONG or path != CHAT_PATH:
            return reply
        sent = b"".join(self.asking.sent)
        if (limit := limit_of(sent)) is None:
            return reply
        try:
            said = self.asking.client.redact(await reply.body(self.limits.error_body_bytes))
        except BaseException:
            self.asking.end(reply)
            raise
        if not read_error(reply.status, said).overflow:
            return replace(reply, said=said)
        self.unfit_limit = limit
        return await self.asking.send_without_limit(path, sent, reply, said)

    # Answering

    async def _stream(self, reply: Reply) -> None:
        headers = {
            "Content-Type": self.dialect.content_type_stream,
            "Cache-Control": "no-cache",
            CALL_HEADER: self.recording.call_id,
        }
        self.http_status = 200
        self.delivery.start(200, headers)
        passage = self._passage()
        if able(self.asking, self.outgoing):
            self._may_go_on(passage)
        answer = passage.answer
        broken, passes = await self._read(passage, reply)
        cut = passes and not answer.complete
        for piece in answer.finish():
            self.delivery.hold(piece.data)
        if answer.finish_reason == ABORT:
            self.delivery.replace_held(self.dialect.stream_error(code=ABORTED_CODE, message=ABORTED))
        if cut:
            self.delivery.drop_held()
            await self._close(*ended(answer, broken))
            return self.delivery.cut()
        await self._close(*ended(answer, broken))
        return await self.delivery.release()

    async def _whole(self, reply: Reply) -> None:
        passage = self._passage()
        broken, _ = await self._read(passage, reply)
        pieces = passage.answer.finish()
        if passage.answer.finish_reason == ABORT and broken is None and able(self.asking, self.outgoing):
            going_on = self._may_go_on(later := self._passage())
            going_on.took(b"".join(passage.chunks))
            if (rest := await going_on.go_on()) is not None:
                passage = later
                broken, _ = await self._read(passage, rest)
                pieces = passage.answer.finish()
        answer = passage.answer
        for piece in pieces:
            self.delivery.hold(piece.data)
        status = 200 if answer.error is None else 502
        if answer.finish_reason == ABORT:
            status = 503
            self.delivery.replace_held(self.dialect.error(status, code=ABORTED_CODE, message=ABORTED))
        self.http_status = status
        await self._close(*ended(answer, broken))
        return await self._give_body(status)

    async def _read(self, passage: Passage, reply: Reply) -> tuple[str | None, bool]:
        """How the engine broke off, if it did, and whether its break passes on to the client."""
        try:
            await passage.run(reply)
        except BrokeOff as error:
            return f"the policy server broke off: {error}", self.dialect.passes_break and not isinstance(error, Silent)
        return None, False

    def _passage(self) -> Passage:
        return Passage(
            dialect=self.dialect,
            answer=self._answer(),
            delivery=self.delivery,
            recording=self.recording,
            limits=self.limits,
            stream=self.outgoing.stream,
            redact=self.asking.client.redact,
        )

    def _may_go_on(self, passage: Passage) -> Continuation:
        self.continuation = passage.continuation = Continuation(
            asking=self.asking,
            recording=self.recording,
            outgoing=self.outgoing,
            hold_s=self.limits.hold_s,
            keep_alive=passage.keep_alive,
        )
        return self.continuation

    def _answer(self) -> Answer:
        assert self.asking.replica is not None
        return self.dialect.answer(
            self.outgoing, engine=self.asking.replica.engine, call_id=self.recording.call_id, created=int(time.time())
        )

    async def _engine_error(self, reply: Reply) -> None:
        """The engine's own error, with its status and words."""
        if reply.status in UNKNOWN_TO_IT:
            return await self._fail(self._unknown(reply))
        body = self.asking.client.redact(await reply.body(self.limits.error_body_bytes))
        self.recording.data(body)
        if reply.status < 400:
            message = f"the policy server answered {reply.status}, which is no answer to a call"
            return await self._fail(Failed(502, "upstream_not_an_engine", message))
        self.delivery.hold(self.dialect.engine_error(reply.status, body, self.outgoing))
        self.http_status = reply.status
        await self._close(CallStatus.ERROR, body[:ERROR_TEXT].decode(errors="replace"))
        passed = {"Retry-After": reply.headers["retry-after"]} if "retry-after" in reply.headers else {}
        return await self._give_body(reply.status, passed)

    def _unknown(self, reply: Reply) -> Failed:
        """Its words are left out: they are about our key, and some servers quote it."""
        url = self.asking.replica.url if self.asking.replica else ""
        message = f"the policy server {url} does not take the proxy's own key ({reply.status}); see --upstream-key-file"
        return Failed(502, "upstream_unauthorized", message)

    def _foreign(self, reply: Reply) -> Failed:
        url = f"{self.asking.replica.url if self.asking.replica else ''}{self.outgoing.path}"
        kind = reply.content_type or "nothing"
        return Failed(502, "upstream_not_an_engine", f"{url} answered with {kind}: is that a policy server?")

    async def _fail(self, failed: Failed) -> None:
        self.delivery.hold(self.dialect.error(failed.status, code=failed.code, message=failed.message))
        self.http_status = failed.status
        await self._close(CallStatus.ERROR, f"{failed.code}: {failed.message}")
        return await self._give_body(failed.status)

    async def _withhold(self, error: JournalFull) -> None:
        """The journal does not take the call's end: its client gets an error in place of a completion."""
        log.error("call withheld: call_id=%s %s", self.recording.call_id, error.message)
        if self.recording.closed:
            self._measure(CallStatus.INTERRUPTED.value, self.recording.recorder.now() - self.recording.opened_us)
        else:
            self._close_quietly(CallStatus.INTERRUPTED, error.message)
        message = "the answer could not be recorded, so it is withheld"
        return await self._end_in_error(503, "recorder_unavailable", message)

    async def _broken(self, error: Exception) -> None:
        """A fault inside the proxy. What is already said of the call stays said; then its client is only cut off."""
        if self.recording.closed:
            raise ClientLeft from error
        if not self.delivery.started:
            self.http_status = 500
        self._close_quietly(CallStatus.ERROR, f"internal_error: {type(error).__name__} inside the proxy")
        return await self._end_in_error(500, "internal_error", "the proxy failed; its log says why")

    async def _end_in_error(self, status: int, code: str, message: str) -> None:
        """In place of what is held, in the shape that fits what the client has got so far."""
        if self.delivery.started:
            error = self.dialect.stream_error(code=code, message=message, begun=self.delivery.begun)
            self.delivery.replace_held(error)
            return await self.delivery.release()
        self.delivery.replace_held(self.dialect.error(status, code=code, message=message))
        return await self._give_body(status)

    async def _give_body(self, status: int, extra: dict[str, str] | None = None) -> None:
        headers = {"Content-Type": "application/json", CALL_HEADER: self.recording.call_id, **(extra or {})}
        self.http_status = status
        return await self.delivery.answer(status, headers)

    # Ending

    async def _close(self, status: CallStatus, error: str | None) -> None:
        """Raises ``JournalFull``: then nothing that is held may go out."""
        frame = self._close_frame(status, error)
        await self.recording.end(frame)
        self._measure(frame.status, frame.end_us)

    def _close_quietly(self, status: CallStatus, error: str) -> None:
        frame = self._close_frame(status, error)
        try:
            self.recording.close(frame)
        except JournalFull as full:
            log.error("call not closed yet: call_id=%s %s", self.recording.call_id, full.message)
        self._measure(frame.status, frame.end_us)

    def _measure(self, status: str, took_us: int | None) -> None:
        recording, metrics = self.recording, self.metrics
        metrics.calls[self.dialect.name, status, recording.kind] += 1
        if status != OK:
            names = "call ended: session_id=%s call_id=%s dialect=%s status=%s http_status=%s"
            log.info(names, recording.session_id, recording.call_id, self.dialect.name, status, self.http_status)
        metrics.duration.observe((took_us or 0) / 1e6)
        if recording.first_byte_us is not None:
            metrics.first_byte.observe(recording.first_byte_us / 1e6)
            if (first_us := self.delivery.first_us) is not None:
                metrics.added.observe((first_us - self.began_us - recording.first_byte_us) / 1e6)

    def _close_frame(self, status: CallStatus, error: str | None) -> Close:
        return close_frame(
            self.asking,
            self.delivery.total(),
            status=status,
            error=error,
            http_status=self.http_status,
            engine_status=self.engine_status,
            content_type=self.content_type,
            version_spans=self.continuation.spans() if self.continuation is not None else None,
        )
