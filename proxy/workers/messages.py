"""What the parent and its workers say to each other, and how one message becomes bytes.

Owns the words and nothing of what follows from them. Messages from the parent are numbered, and every one of them is
acknowledged once it holds in the worker.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

from forge.proxy.config import ProxyConfig
from forge.proxy.engines import ENGINES
from forge.proxy.engines.base import Abilities
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.pool import Replica, State


class Message(msgspec.Struct, frozen=True, tag_field="t", kw_only=True):
    """Base of all messages."""


class Begin(Message, tag="begin", frozen=True, kw_only=True):
    """The first one: who the worker is."""

    config: dict[str, Any]
    """``ProxyConfig`` of this worker, as ``plain`` writes it."""
    number: int
    workers: int
    token: str
    """Of the control plane."""
    base_url: str
    folder: str
    """Where the sockets lie on which workers are reached."""
    ports: tuple[int, ...]


class Joined(Message, tag="joined", frozen=True, kw_only=True):
    """The worker's answer: what its journal remembers."""

    policies: dict[str, Policy]
    """By replica: what was published to it last."""
    strays: bytes
    """Sessions of its journal that live elsewhere by the rule; empty if there are none."""


class Refused(Message, tag="refused", frozen=True, kw_only=True):
    """It cannot start."""

    message: str
    hint: str
    code: int
    """That of the error, as the command exits with it."""


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    engine: str
    abilities: Abilities
    state: State
    reason: str
    policy: Policy

    @classmethod
    def of(cls, replica: Replica) -> ReplicaState:
        return cls(
            url=replica.url,
            engine=replica.engine.name,
            abilities=replica.abilities,
            state=replica.state,
            reason=replica.reason,
            policy=replica.policy,
        )

    def put_on(self, replica: Replica | None) -> Replica:
        """``replica``, or a new one, as this says."""
        if replica is None:
            replica = Replica(self.url, ENGINES[self.engine])
        replica.engine, replica.abilities = ENGINES[self.engine], self.abilities
        replica.state, replica.reason, replica.policy = self.state, self.reason, self.policy
        return replica


class Follow(Message, tag="follow", frozen=True, kw_only=True):
    """How everything stands: always all of it."""

    number: int
    replicas: list[ReplicaState]
    shut_for: list[str]
    """Why calls wait; empty if they do not."""
    published: dict[str, Policy]
    """By replica: what was published to it last. Each worker's journal says so too."""
    refuses: str
    """Why no new sessions are taken."""


class Strays(Message, tag="strays", frozen=True, kw_only=True):
    """Sessions that live elsewhere than the rule says: what ``Homes`` learns before anything is served."""

    number: int
    of: list[bytes]


class Quiet(Message, tag="quiet", frozen=True, kw_only=True):
    """To be acknowledged once no call runs on the replica."""

    number: int
    url: str


class Drain(Message, tag="drain", frozen=True, kw_only=True):
    """No new calls; to be acknowledged once the running ones have ended and all is cut."""

    number: int


class Ack(Message, tag="ack", frozen=True, kw_only=True):
    number: int
    in_flight: dict[str, int]
    """Calls running on each replica."""
    cut: tuple[int, int] | None = None
    """Of a drain: where its journal ends."""


class Down(Message, tag="down", frozen=True, kw_only=True):
    """A worker met a replica that cannot be reached."""

    url: str
    reason: str


FromParent: TypeAlias = Begin | Strays | Follow | Quiet | Drain
Asked: TypeAlias = Strays | Follow | Quiet | Drain
"""What is acknowledged."""
FromWorker: TypeAlias = Joined | Refused | Ack | Down

LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 1 << 30

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(FromParent | FromWorker)


def encode(message: Message) -> bytes:
    """Length, then msgpack."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "little") + body


def decode(body: bytes) -> FromParent | FromWorker:
    """Raises ``msgspec.DecodeError`` or ``ValidationError``."""
    found: FromParent | FromWorker = _decoder.decode(body)
    return found


def plain(config: ProxyConfig) -> dict[str, Any]:
    """Paths as text; everything else is plain already."""
    found: dict[str, Any] = msgspec.to_builtins(config, enc_hook=str)
    return found


def config_of(values: dict[str, Any]) -> ProxyConfig:
    return msgspec.convert(values, ProxyConfig, dec_hook=lambda kind, value: kind(value))
