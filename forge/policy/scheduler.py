"""The one thread that runs the model: continuous batching, pause and reload.

Each turn of the loop is at most one prefill chunk and one decode step of all running jobs, so streams keep flowing
while a long prompt is read. It knows ids, never HTTP. Not obvious: only one prompt is read at a time; reading is bound
by arithmetic, so nothing is lost, and the next prompt finds the KV of the one before it: sessions that start together
with the same prompt read it once.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from forge.policy.answer import Answer, Said
from forge.policy.grammar import Matcher
from forge.policy.llama import Llama
from forge.policy.rows import Row, RowCache
from forge.policy.sampler import Drawn, Sampler, Scored, score

log = logging.getLogger(__name__)

CHUNK = 512
"""Prompt tokens read in one go while nothing else runs."""
CHUNK_BUSY = 256
"""The same while streams are waiting for their next token: about 0.7 s on two cores."""
CHUNK_SCORED = 128
"""The same where every prompt id is scored: the logits of a chunk are 25 MB."""
ROOM = 256
"""Tokens of output that a new row has room for before it grows."""

PauseMode = Literal["wait", "abort", "keep"]


class Step(NamedTuple):
    """What a job tells its owner after each token, or at its end (``drawn`` None: aborted or failed)."""

    drawn: Drawn | None
    said: Said


class QueueFull(Exception):
    """Too many jobs wait."""


class NotPaused(Exception):
    """New weights were offered while jobs run."""


@dataclass(slots=True, eq=False)
class Job:
    prompt: list[int]
    sampler: Sampler
    answer: Answer
    matcher: Matcher | None
    tell: Callable[[Step], None]
    """Called from the scheduler's thread."""
    cancelled: bool = False
    cached: int = 0
    """Prompt ids whose KV was found, not computed."""
    row: Row | None = None
    prompt_top: int | None = None
    """Alternatives to give with the log prob of each prompt id; None: prompt ids are not scored."""
    scored: list[Scored] = field(default_factory=list)
    """Of the prompt's ids from the second on."""

    def sequence(self) -> list[int]:
        return self.prompt + self.answer.ids


@dataclass(slots=True)
class Scheduler:
    llama: Llama
    version: str
    digest: str
    slots: int
    rows: RowCache
    queue_limit: int
    paused: bool = False
    _still: bool = False
    """Paused so that even running jobs make no step."""
    _wake: threading.Condition = field(default_factory=threading.Condition)
    _waiting: deque[Job] = field(default_factory=deque)
    _reading: Job | None = None
    _running: list[Job] = field(default_factory=list)
    _orders: deque[Callable[[], None]] = field(default_factory=deque)
    _drained: list[Future[None]] = field(default_factory=list)
    _closing: bool = False
    _thread: threading.Thread | None = None

    # Called from any thread.

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="policy-scheduler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Abort what runs and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def submit(self, job: Job) -> None:
        with self._wake:
            if len(self._waiting) >= self.queue_limit:
                raise QueueFull
            self._waiting.append(job)
            self._wake.notify()

    def cancel(self, job: Job) -> None:
        """Its owner is gone: it ends before the next step."""
        with self._wake:
            job.cancelled = True
            self._wake.notify()

    def order(self, act: Callable[[], None]) -> Future[None]:
        """Run ``act`` between two steps."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                act()
            except Exception as error:  # noqa: BLE001 - handed to whoever ordered it
                done.set_exception(error)
            else:
                done.set_result(None)

        with self._wake:
            self._orders.append(run)
            self._wake.notify()
        return done

    def pause(self, mode: PauseMode) -> Future[None]:
        """Start no new job; done when nothing runs (wait, abort) or when what runs stands still (keep)."""
        drained: Future[None] = Future()

        def act() -> None:
            self.paused = True
            if mode == "abort":
                for job in self._in_flight():
                    self._end(job, "abort")
            self._drained.append(drained)
            self._still = mode == "keep"

        self.order(act)
        return drained

    def resume(self) -> Future[None]:
        def act() -> None:
            self.paused = self._still = False

        return self.order(act)

    def replace(self, llama: Llama, digest: str) -> Future[None]:
        """Swap the weights. Jobs kept by the pause are read again under the new ones."""

        def act() -> None:
            if not self.paused or (self._in_flight() and not self._still):
                raise NotPaused
            kept = self._in_flight()
            for job in kept:
                self._release(job, keep=False)
            self._waiting.extendleft(reversed(kept))
            self.rows.clear()
            self.llama, self.digest = llama, digest

        return self.order(act)

    # The thread's own.

    def _loop(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._has_work)
                orders, self._orders = self._orders, deque()
                if self._closing:
                    break
            for order in orders:
                order()
            try:
                self._turn()
            except Exception:  # the thread is the boundary: one bad step must not end the server
                log.exception("a step failed; its jobs end with an error")
                for job in self._in_flight():
                    self._end(job, "error")
        for job in [*self._in_flight(), *self._waiting]:
            self._end(job, "abort")
        for order in orders:
            order()

    def _has_work(self) -> bool:
        if self._closing or self._orders or self._drained:
            return True
        if any(job.cancelled for job in (*self._waiting, *self._in_flight())):
            return True
        return not self._still and bool(self._in_flight() or (self._waiting and not self.paused))

    def _in_flight(self) -> list[Job]:
        return [*self._running, *([self._reading] if self._reading else [])]

    def _turn(self) -> None:
        with self._wake:
            gone = [job for job in (*self._waiting, *self._in_flight()) if job.cancelled]
        for job in gone:
            self._end(job, "abort")
        if self.paused and not self._in_flight():
            self._still = True
        if self._still:
            drained, self._drained = self._drained, []
            for waiter in drained:
                waiter.set_result(None)
            return
        self._read()
        self._decode()

    def _read(self) -> None:
        """One chunk of one prompt."""
        if self._reading is None:
            with self._wake:
                if self.paused or not self._waiting or len(self._running) >= self.slots:
                    return
                job = self._waiting.popleft()
            # A score is of these weights alone: it uses no KV that was there before.
            scoring = job.prompt_top is not None
            job.row = self.rows.fresh(len(job.prompt) + ROOM) if scoring else self.rows.take(job.sequence(), ROOM)
            job.scored.clear()
            if not job.answer.ids:
                job.cached = job.row.length
            self._reading = job
        job, row = self._reading, self._reading.row
        assert row is not None
        sequence = job.sequence()
        chunk = CHUNK_BUSY if self._running else CHUNK
        end = min(len(sequence), row.length + (chunk if job.prompt_top is None else CHUNK_SCORED))
        if job.prompt_top is None:
            logits = self.llama.prefill_last(row, sequence[row.length : end])
        else:
            every = self.llama.prefill(row, sequence[row.length : end])
            start = end - len(every)
            known = sequence[start + 1 : min(end + 1, len(job.prompt))]
            job.scored += score(every[: len(known)], known, job.prompt_top)
            logits = every[-1]
        if end == len(sequence):
            self._reading = None
            self._running.append(job)
            self._draw(job, logits)

    def _decode(self) -> None:
        """One token of every job that lacks the KV of its last one only."""
        jobs = list(self._running)
        if not jobs:
            return
        rows = [job.row for job in jobs if job.row is not None]
        for job, logits in zip(jobs, self.llama.decode(rows, [job.answer.ids[-1] for job in jobs]), strict=True):
            self._draw(job, logits)

    def _draw(self, job: Job, logits: Tensor) -> None:
        try:
            drawn = job.sampler.draw(logits, job.matcher.allowed() if job.matcher else None)
            if job.matcher:
                job.matcher.accept(drawn.id)
        except RuntimeError:
            log.exception("an answer cannot go on")
            self._end(job, "error")
            return
        said = job.answer.feed(drawn.id, self.version)
        if said.finish:
            self._release(job, keep=True)
        self._tell(job, Step(drawn, said))

    def _end(self, job: Job, reason: str) -> None:
        """End a job that is anywhere, without a token."""
        if job in self._waiting:
            self._waiting.remove(job)
        self._release(job, keep=True)
        self._tell(job, Step(None, Said(job.answer.flush(), reason, None)))

    def _tell(self, job: Job, step: Step) -> None:
        if not job.cancelled:  # else its event loop may be closed by now
            job.tell(step)

    def _release(self, job: Job, *, keep: bool) -> None:
        if job is self._reading:
            self._reading = None
        elif job in self._running:
            self._running.remove(job)
        if job.row is not None:
            if not keep:
                job.row.ids.clear()
            self.rows.give_back(job.row)
            job.row = None
