"""Going on with a generation that its engine gave up, as it does for new weights: one row, one unbroken stream.

Owns what of the engine's bytes the client's answer gets meanwhile (all but the giving up), when the rest is asked
for, and which policy version sampled which tokens. It must not know dialects. The one non-obvious fact: the bytes of
every part are recorded as they came, giving up included; a reader of the row takes the last end that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from forge.proxy import splice
from forge.proxy.calls.asking import Asking
from forge.proxy.dialects.base import CHAT_PATH, Outgoing
from forge.proxy.engines import read
from forge.proxy.engines.base import GivenUp
from forge.proxy.recording.recorder import Recording
from forge.proxy.upstreams.client import Reply

PARTS_MAX: Final = 16
"""A generation that is given up more often than this is an aborted call."""
GIVEN_UP: Final = re.compile(rb'"finish_reason"\s*:\s*"abort"')
"""Inside a string every quote is escaped: this is the member itself."""
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
KeepAlive = Callable[[], Awaitable[float | None]]


class _Head(msgspec.Struct):
    id: str
    created: int


@dataclass(slots=True)
class Continuation:
    """Of one call. ``feed`` and ``rest`` give the answer's bytes; ``go_on`` the reply that holds the next part."""

    asking: Asking
    recording: Recording
    outgoing: Outgoing
    hold_s: float
    _parts: list[bytearray] = field(default_factory=lambda: [bytearray()])
    """Every byte of every part."""
    _tail: bytes = b""
    """An event that has begun."""
    _withheld: bytes = b""
    """The giving up and what follows it; of a whole body, all of it."""
    _given_up: bool = False
    _begins: list[tuple[int | None, int]] = field(default_factory=list)
    """Version, and at which output token it began, of each later part."""

    def able(self) -> bool:
        replica = self.asking.replica
        if replica is None or not (replica.engine.continues and replica.abilities.token_in):
            return False
        if self.outgoing.path != CHAT_PATH:
            return False
        count = bytes(splice.members(self.outgoing.body).get("n", b"null"))
        return count in (b"null", b"1")

    def feed(self, chunk: bytes) -> bytes:
        """What the answer may get of these bytes of the engine now."""
        self._parts[-1] += chunk
        if not self.outgoing.stream:
            return b""
        if self._given_up:
            self._withheld += chunk
            return b""
        self._tail += chunk
        end = _last_end(self._tail, len(self._tail))
        events, self._tail = self._tail[:end], self._tail[end:]
        found = GIVEN_UP.search(events)
        if found is None:
            return events
        at = _last_end(events, found.start())
        self._given_up, self._withheld, self._tail = True, events[at:] + self._tail, b""
        return events[:at]

    def rest(self) -> bytes:
        """What was held back, once nothing more comes."""
        if self.outgoing.stream:
            return self._withheld + self._tail
        if len(self._parts) == 1:
            return bytes(self._parts[0])
        try:
            whole = joined(self._parts)
        except (msgspec.DecodeError, LookupError, TypeError):
            return bytes(self._parts[-1])
        self.recording.instead(whole)
        return whole

    async def go_on(self, keep_alive: KeepAlive) -> Reply | None:
        """None: the generation was not given up, or its rest cannot be had."""
        if not self.outgoing.stream:
            self._given_up = GIVEN_UP.search(self._parts[-1]) is not None
        replica = self.asking.replica
        if not self._given_up or replica is None or replica.engine.token_in is None or len(self._begins) >= PARTS_MAX:
            return None
        so_far = self._so_far()
        body = replica.engine.continuation(self.outgoing.body, so_far) if so_far is not None else None
        if so_far is None or body is None or not await self._passed(keep_alive):
            return None
        reply = await self.asking.go_on(replica.engine.token_in, body)
        if reply is None or self.asking.replica is None:
            return None
        self._begins.append((self.asking.replica.policy.version, len(so_far.output_ids)))
        self._given_up, self._withheld = False, b""
        self._parts.append(bytearray())
        return reply

    def spans(self) -> str | None:
        """JSON array of [version, start, end); the last end is null. None: one part, or a version is not known."""
        if not self._begins:
            return None
        parts = [(self.asking.policy.version, 0), *self._begins]
        if any(version is None for version, _ in parts):
            return None
        ends = [*(start for _, start in self._begins), None]
        return msgspec.json.encode([[v, start, end] for (v, start), end in zip(parts, ends, strict=True)]).decode()

    def _so_far(self) -> GivenUp | None:
        assert self.asking.replica is not None
        try:
            body = b"".join(self._parts) if self.outgoing.stream or len(self._parts) == 1 else joined(self._parts)
            (tokens,) = read(self.asking.replica.engine, body)
            head = _head(body)
        except (ValueError, LookupError, TypeError):
            return None
        exact = len(tokens.prompt_ids) and len(tokens.output_ids) == len(tokens.output_log_probs)
        if not exact or tokens.finish_reason != "abort":
            return None
        return GivenUp(tokens.prompt_ids.tolist(), tokens.output_ids.tolist(), head.id, head.created)

    async def _passed(self, keep_alive: KeepAlive) -> bool:
        """Waits for a publication to end; the client hears of us meanwhile."""
        left = self.hold_s
        while left > 0:
            step = min(left, await keep_alive() or left)
            if await self.asking.pool.passed(step):
                return True
            left -= step
        return False


def _last_end(events: bytes, until: int) -> int:
    """Where the last whole event before ``until`` ends; 0 if none does."""
    places = [(events.rfind(mark, 0, until), mark) for mark in _ENDS]
    return max((at + len(mark) for at, mark in places if at >= 0), default=0)


def _head(body: bytes) -> _Head:
    """Raises ``ValueError``: what names the answer is the same in all its parts."""
    start = body.index(b"{")
    end = body.find(b"\n", start)
    return msgspec.json.decode(body[start : end if end > 0 else len(body)], type=_Head)


def joined(bodies: Sequence[bytes | bytearray]) -> bytes:
    """Whole bodies of one answer's parts as one: the last one's message, the tokens of all."""
    parts = [msgspec.json.decode(body) for body in bodies]
    first, last = parts[0], parts[-1]
    choices = [part["choices"][0] for part in parts]
    for name in ("token_ids", "weight_versions"):
        if any(choice.get(name) for choice in choices):
            choices[-1][name] = [one for choice in choices for one in choice.get(name) or ()]
    if any(choice.get("logprobs") for choice in choices):
        entries = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content") or ()]
        choices[-1]["logprobs"] = {"content": entries}
    whole: dict[str, Any] = last | {"id": first["id"], "created": first["created"]}
    return msgspec.json.encode(whole)
