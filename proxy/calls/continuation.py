"""Going on with a generation that its engine gave up, as it does for new weights: one row, one unbroken stream.

Owns what of the engine's bytes the client's answer gets meanwhile (all but the giving up), and which policy version
sampled which tokens. It must not know dialects, nor how the rest is asked for. The one non-obvious fact: the bytes of
every part are recorded as they came, giving up included; a reader of the row takes the last end that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from forge.proxy.calls.asking import Asking
from forge.proxy.calls.resumption import Resumption
from forge.proxy.dialects.base import ABORT, CHAT_PATH, COMPLETIONS_PATH, Outgoing
from forge.proxy.engines import read
from forge.proxy.engines.base import INEXACT, GivenUp, Rest
from forge.proxy.engines.rest import end_of_body, end_of_stream, said
from forge.proxy.recording.recorder import Recording
from forge.proxy.upstreams.client import Reply

GIVEN_UP: Final = re.compile(rb'"finish_reason"\s*:\s*"abort"')
"""Inside a string every quote is escaped: this is the member itself."""
ABORT_WORD: Final = b'"abort"'
_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
KeepAlive = Callable[[], Awaitable[float | None]]


class _Head(msgspec.Struct):
    id: str
    created: int


def able(asking: Asking, outgoing: Outgoing) -> bool:
    """Whether the policy server can go on with such an answer."""
    replica = asking.replica
    if replica is None or replica.engine.continuation is None or outgoing.choices != 1:
        return False
    if outgoing.path == CHAT_PATH:
        return replica.abilities.token_in
    return outgoing.path == COMPLETIONS_PATH


@dataclass(slots=True, kw_only=True)
class Continuation:
    """Of one call. ``feed`` and ``rest`` give the answer's bytes; ``go_on`` the reply that holds the next part. A whole
    body begins with ``took``, once it is known to be given up."""

    asking: Asking
    recording: Recording
    outgoing: Outgoing
    hold_s: float
    keep_alive: KeepAlive
    resumption: Resumption = field(init=False)
    _parts: list[list[bytes]] = field(default_factory=lambda: [[]])
    """Every byte of every part that has the answer's own shape."""
    _tail: bytes = b""
    """An event that has begun."""
    _withheld: bytes = b""
    """The giving up and what follows it."""
    _given_up: bool = False

    def __post_init__(self) -> None:
        self.resumption = Resumption(self.asking, self.outgoing.path, self._passed)

    def feed(self, chunk: bytes) -> bytes:
        """Records the engine's bytes, and gives what of them the answer may get now. Raises ``JournalFull``."""
        if not self.resumption.passes:
            self.recording.beside(chunk)
            self.resumption.sampled += chunk
            return b""
        self.recording.data(chunk)
        self._parts[-1].append(chunk)
        if not self.outgoing.stream:
            return b""
        if self._given_up:
            self._withheld += chunk
            return b""
        if not self._tail and chunk.endswith(b"\n\n") and ABORT_WORD not in chunk:
            return chunk
        self._tail += chunk
        end = _last_end(self._tail, len(self._tail))
        events, self._tail = self._tail[:end], self._tail[end:]
        found = GIVEN_UP.search(events)
        if found is None:
            return events
        at = _last_end(events, found.start())
        self._given_up, self._withheld, self._tail = True, events[at:] + self._tail, b""
        return events[:at]

    def took(self, body: bytes) -> None:
        """The engine's whole body, recorded already."""
        self._parts = [[body]]

    async def go_on(self) -> Reply | None:
        """None: the generation was not given up, or its rest cannot be had, or all of it is there."""
        if not self.resumption.passes:
            return await self._took(await self.resumption.go_on())
        if not self.outgoing.stream:
            self._given_up = GIVEN_UP.search(b"".join(self._parts[-1])) is not None
        so_far = self._so_far() if self._given_up else None
        return await self._took(await self.resumption.begin(so_far)) if so_far is not None else None

    async def _took(self, reply: Reply | None) -> Reply | None:
        if reply is not None and self.resumption.passes:
            self._given_up, self._withheld = False, b""
            self._parts.append([])
        return reply

    def rest(self) -> bytes:
        """What was held back, once nothing more comes; recorded, where it is new. Raises ``JournalFull``."""
        rest = self.resumption.rest
        if self.outgoing.stream:
            withheld = self._withheld + self._tail
            return withheld if rest is None else self._end_of_stream(withheld, rest)
        if rest is None and len(self._parts) == 1:
            return b"".join(self._parts[0])
        try:
            whole = joined(self._bodies())
            whole = whole if rest is None else end_of_body(whole, rest)
        except (msgspec.DecodeError, *INEXACT):
            return b"".join(self._parts[-1])
        self.recording.instead(whole)
        return whole

    def let_go(self) -> None:
        """The call is over: its bytes go now. What refers to itself would keep them until cycles are looked for."""
        self._parts = []
        del self.keep_alive, self.resumption

    def _bodies(self) -> list[bytes]:
        return [b"".join(part) for part in self._parts]

    def _end_of_stream(self, withheld: bytes, rest: Rest) -> bytes:
        assert self.asking.replica is not None
        given = b"".join(self._bodies()).removesuffix(withheld)
        try:
            message = read(self.asking.replica.engine, given)[0].message if given.strip() else {}
            end = end_of_stream(withheld, message, message.get("content") or "", rest)
        except INEXACT:
            return withheld
        self.recording.data(end)
        return end

    def spans(self) -> str | None:
        """JSON array of [version, start, end); the last end is null. None: one part, or a version is not known."""
        begins = self.resumption.begins
        parts = [(self.asking.policy.version, 0), *begins]
        if not begins or any(version is None for version, _ in parts):
            return None
        ends = [*(start for _, start in begins), None]
        return msgspec.json.encode([[v, start, end] for (v, start), end in zip(parts, ends, strict=True)]).decode()

    def _so_far(self) -> GivenUp | None:
        body = b"".join(self._bodies())
        try:
            if not self.outgoing.stream:
                body = joined(self._bodies())
            found, head = said(body), _head(body)
            exact = bool(found.prompt_ids) and len(found.ids) == len(found.log_probs)
            if not exact or found.finish_reason != ABORT:
                return None
            stream = self.outgoing.stream
            return GivenUp(found.prompt_ids, found.ids, head.id, head.created, found.pieces, found.text, stream)
        except (msgspec.DecodeError, *INEXACT):
            return None

    async def _passed(self) -> bool:
        """Waits for a publication to end; the client hears of us meanwhile."""
        left = self.hold_s
        while left > 0:
            step = min(left, await self.keep_alive() or left)
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
    if len(bodies) == 1:
        return bytes(bodies[0])
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
