"""What the call path needs of a wire format.

A dialect turns the harness's request into the engine's chat request, and the engine's answer, chunk by chunk, into
the harness's. It holds no sockets: the server feeds it bytes and sends what it gives, in the order it gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

import msgspec

from forge.proxy.engines.base import Ask, Engine
from forge.proxy.sessions.turns import Request
from forge.proxy.splice import Shared

CHAT_PATH: Final = "/v1/chat/completions"
BROKEN_OFF: Final = "the policy server's answer broke off before its end"
UNREADABLE_ANSWER: Final = "the policy server's answer cannot be read"
"""An answer's error where the engine said nothing of one: its row is ``truncated``. Where it did, ``error``."""
ABORT: Final = "abort"
"""The finish reason of a generation that the engine gave up."""
ABORTED: Final = "the policy server aborted this generation; ask again"
COMPLETIONS_PATH: Final = "/v1/completions"


class Hold(IntEnum):
    """What must be in the journal before a piece may reach the client."""

    NOTHING = 0
    DATA = 1
    """Every engine byte received so far: the client can act on this piece."""
    CLOSE = 2
    """The close frame too: nothing a client can act on comes after it. Once given, all later pieces are held too."""


class Piece(msgspec.Struct, frozen=True):
    """Bytes for the client, one or more whole events (or one whole body)."""

    data: bytes
    hold: Hold = Hold.NOTHING


@dataclass(frozen=True, slots=True)
class Target:
    """What the path itself says, in formats whose body does not."""

    model: str | None = None
    stream: bool = False


NO_TARGET: Final = Target()


class Overrides(msgspec.Struct, frozen=True):
    """What the session lays over a request."""

    sampling: Mapping[str, Any] | None = None
    """The run's training sampling, sent with every call in place of the harness's; None leaves the harness's."""
    model: str | None = None
    """Model name the engine serves."""
    max_tokens_cap: int | None = None
    """Output tokens the session's budget still allows."""
    context_len: int | None = None
    """The engine's context in tokens, to clamp ``max_tokens`` to what can fit at all; None leaves it."""
    unfit_limit: int | None = None
    """Output tokens that the engine has refused this session beside its prompt, which only grows."""


class Outgoing(msgspec.Struct, frozen=True):
    """A request made ready for the engine."""

    pieces: tuple[bytes | memoryview, ...]
    """JSON for the engine's ``path``; joined only where it has to be."""
    edited: bool
    """False when that is the harness's own bytes."""
    stream: bool
    """The harness wants a stream; the engine is asked for the same."""
    ask: Ask
    model_requested: str | None
    sampling_asked: str | None
    sampling_sent: str | None
    edits: str | None
    """JSON array of recorded edits: {"edit": name, ...}."""
    hints: Mapping[str, Any] = {}
    """Body fields that attribution and kinds look at: prompt_cache_key, metadata, client_metadata, tools count,
    first user text... Small values only."""
    context: Any = None
    """What the dialect itself needs to write the answer (tool maps, echoed fields)."""
    shared: Shared | None = None
    """The part of the harness's request that is the second of three pieces."""
    path: str = CHAT_PATH
    """The engine's route."""
    choices: int = 1
    """How many answers the engine is asked for."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


class BadRequest(Exception):
    """The request cannot be served as it is; the text says what and where, for the caller's own error format."""

    def __init__(self, message: str, *, code: str = "invalid_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Answer(Protocol):
    """One call's answer on its way to the client; fed with the engine's 200 body."""

    def feed(self, chunk: bytes) -> Sequence[Piece]:
        """Engine bytes, cut anywhere."""

    def finish(self) -> Sequence[Piece]:
        """The engine's body has ended (or broken off). Gives the rest; for an answer that broke off, the dialect's
        own error event so that the client never waits for an end that does not come."""

    @property
    def complete(self) -> bool:
        """The engine's end mark was seen: the call is ``ok``, not ``truncated``."""

    @property
    def finish_reason(self) -> str | None:
        """The engine's finish reason, once known."""

    @property
    def error(self) -> str | None:
        """Why the answer is not complete, where that is known: the engine's own words inside its 200, or what is
        wrong with its bytes."""


class Dialect(Protocol):
    name: str
    keepalive: bytes
    """One keepalive event this dialect's clients count as life."""
    content_type_stream: str
    passes_break: bool
    """A stream that the engine breaks off is broken off for the client too: its clients ask again then, and some give
    up on an error event."""

    def request(
        self, body: Request, *, engine: Engine, overrides: Overrides, call_id: str, target: Target = NO_TARGET
    ) -> Outgoing:
        """Raises ``BadRequest``."""

    def answer(self, outgoing: Outgoing, *, engine: Engine, call_id: str, created: int) -> Answer:
        """``created``: seconds since the epoch, for formats that carry a time."""

    def error(self, status: int, *, code: str, message: str, param: str | None = None) -> bytes:
        """An error body in this dialect's shape."""

    def engine_error(self, status: int, body: bytes, outgoing: Outgoing) -> bytes:
        """The engine's own error answer, its message kept, in this dialect's shape (chat: as it is)."""

    def stream_error(self, *, code: str, message: str, begun: bool = True) -> bytes:
        """An error event inside a stream whose head is out; ``begun``: a piece of the answer too."""
