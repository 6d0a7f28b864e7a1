"""Asking for the rest of a generation that was given up, by whatever questions its engine wants.

Owns the way from one giving up to the next answer or end: which policy server goes on, its version, what was sampled.
It must not know what the questions mean, nor the shape of the client's answer. The one non-obvious fact: a rest may be
given up too, and then goes on from all that was sampled so far.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from forge.proxy.calls.asking import Asking
from forge.proxy.dialects.base import ABORT
from forge.proxy.engines.base import INEXACT, Continuing, GivenUp, Question, Rest
from forge.proxy.splice import UNREADABLE
from forge.proxy.upstreams.client import Reply
from forge.proxy.upstreams.pool import Replica

PARTS_MAX: Final = 16
"""A generation that is given up more often than this is an aborted call."""
Ready = Callable[[], Awaitable[bool]]


@dataclass(slots=True)
class Resumption:
    """Of one call. Each reply that it gives is to be read to its end, then ``go_on`` called again."""

    asking: Asking
    path: str
    ready: Ready
    """Waits for what the generation was given up for; false: it takes too long."""
    begins: list[tuple[int | None, int]] = field(default_factory=list)
    """Version, and at which output token it began, of each later part."""
    passes: bool = True
    """What the reply says has the shape of the answer itself."""
    sampled: bytearray = field(default_factory=bytearray)
    """What a reply says that does not pass; whoever reads it puts it here."""
    _rests: list[Rest] = field(default_factory=list)
    _so_far: GivenUp | None = None
    _steps: Continuing | None = None
    _replica: Replica | None = None

    @property
    def rest(self) -> Rest | None:
        """All that was sampled since the giving up, once its end is known."""
        if not self._rests or self._rests[-1].finish_reason == ABORT:
            return None
        ids = [token for rest in self._rests for token in rest.ids]
        log_probs = [entry for rest in self._rests for entry in rest.log_probs]
        return replace(self._rests[-1], ids=ids, log_probs=log_probs)

    async def begin(self, so_far: GivenUp) -> Reply | None:
        """None: it cannot be had."""
        self._steps = None
        if len(self.begins) >= PARTS_MAX or not await self.ready():
            return None
        self._replica = self.asking.successor()
        if self._replica is None or self._replica.engine.continuation is None:
            return None
        self._so_far = so_far
        self.asking.sent = self.asking.named(self.asking.sent, self._replica)
        self._steps = self._replica.engine.continuation(self.path, b"".join(self.asking.sent), so_far)
        return await self._ask(None)

    async def go_on(self) -> Reply | None:
        """The reply has ended. None: there is nothing more to read."""
        if self._steps is None:
            return None
        answer = bytes(self.sampled)
        self.sampled.clear()
        return await self._ask(answer)

    async def _ask(self, answer: bytes | None) -> Reply | None:
        assert self._steps is not None
        while True:
            try:
                question = next(self._steps) if answer is None else self._steps.send(answer)
            except StopIteration as end:
                return await self._ended(end.value)
            except (*INEXACT, *UNREADABLE):
                self._give_up()
                return None
            if question.samples:
                return await self._sample(question)
            assert self._replica is not None
            answer = await self.asking.look(self._replica, question.path, question.body)
            if answer is None:
                self._give_up()
                return None

    async def _sample(self, question: Question) -> Reply | None:
        assert self._replica is not None
        assert self._so_far is not None
        reply = await self.asking.go_on(self._replica, question.path, question.body or b"")
        if reply is None:
            self._give_up()
            return None
        self.begins.append((self._replica.policy.version, len(self._so_far.output_ids)))
        self.passes = question.passes
        return reply

    async def _ended(self, rest: Rest | None) -> Reply | None:
        self._steps, self.passes = None, True
        if rest is None:
            return None
        self._rests.append(rest)
        so_far = self._so_far
        if rest.finish_reason != ABORT or so_far is None:
            return None
        pieces = [*so_far.pieces, *(entry["token"] for entry in rest.log_probs)]
        ids, text = so_far.output_ids + rest.ids, so_far.text + rest.text
        return await self.begin(replace(so_far, output_ids=ids, pieces=pieces, text=text))

    def _give_up(self) -> None:
        self._steps, self.passes = None, True
        self._rests.clear()
