"""The policy servers: which are there, which one a call goes to, and which policy each one serves.

A session sticks to one replica (its prefix cache is there) until that one is down, draining or far busier than the
idlest. While a publication runs the gate is shut and calls wait before they choose. Does no I/O of its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from forge.proxy.engines.base import Abilities, Engine
from forge.proxy.sessions.spec import Policy
from forge.storage.records import VersionSource

PAUSED: Final = "paused"
PUBLISHING: Final = "publishing"
"""Why calls wait at the gate."""
SPILL: Final = 8
"""A session leaves its replica when that one has this many calls more in flight than the idlest."""


class State(StrEnum):
    UP = "up"
    DOWN = "down"
    """It refused a connection, or its weights are not what they should be; health checks bring it back."""
    LOADING = "loading"
    """A rolling publication is at it."""
    DRAINING = "draining"
    """Takes no new sessions and soon no calls; an owner asked for it."""


@dataclass(slots=True, eq=False)
class Replica:
    url: str
    engine: Engine
    abilities: Abilities = field(default_factory=Abilities)
    state: State = State.UP
    reason: str = ""
    """Why it is not up."""
    in_flight: int = 0
    begun: int = 0
    """Calls since it joined: of servers that are equally busy the one that had fewer is next."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    policy: Policy = field(default_factory=Policy)
    weights: str | None = None
    """Where its base weights were loaded from; None: it cannot be told. Only publications ask."""
    bad_weights: bool = False
    """A publication failed half way, or it came back as another than it was: only a publication makes it good."""

    def takes(self, other: Replica) -> bool:
        """A request that was written for the other one suits this one."""
        return self.engine.name == other.engine.name and self.abilities.model == other.abilities.model

    @property
    def version_source(self) -> VersionSource:
        return VersionSource.UNKNOWN if self.policy.version is None else VersionSource.REPLICA_STATE


class Pool:
    def __init__(self) -> None:
        self._replicas: dict[str, Replica] = {}
        self._gate = asyncio.Event()
        self._gate.set()
        self._shut_for: set[str] = set()

    def all(self) -> list[Replica]:
        return list(self._replicas.values())

    def get(self, url: str) -> Replica | None:
        return self._replicas.get(url)

    def add(self, replica: Replica) -> None:
        self._replicas[replica.url] = replica
        replica.idle.set()

    def remove(self, url: str) -> Replica | None:
        return self._replicas.pop(url, None)

    def pick(self, sticky: str | None, *, like: Replica | None = None) -> Replica | None:
        """The replica for a call of a session that was last served by ``sticky``; None if none is up. ``like``: one
        that takes a request as it was written for that replica."""
        up = [r for r in self._replicas.values() if r.state is State.UP and (like is None or r.takes(like))]
        if len(up) == 1:
            return up[0]
        if not up:
            return None
        idlest = min(up, key=lambda r: (r.in_flight, r.begun))
        mine = next((r for r in up if r.url == sticky), None)
        return mine if mine is not None and mine.in_flight < idlest.in_flight + SPILL else idlest

    def first(self) -> Replica | None:
        """Any replica, an up one before others: what the pool can do, for requests that are no calls."""
        return self.pick(None) or next(iter(self._replicas.values()), None)

    def begin(self, replica: Replica) -> None:
        replica.in_flight += 1
        replica.begun += 1
        replica.idle.clear()

    def end(self, replica: Replica) -> None:
        replica.in_flight -= 1
        if replica.in_flight == 0:
            replica.idle.set()

    def down(self, replica: Replica, reason: str) -> None:
        if replica.state == State.UP:
            replica.state, replica.reason = State.DOWN, reason

    def up(self, replica: Replica) -> None:
        if replica.state == State.DOWN and not replica.bad_weights:
            replica.state, replica.reason = State.UP, ""

    @property
    def is_open(self) -> bool:
        return self._gate.is_set()

    @property
    def shut_for(self) -> list[str]:
        """Why calls wait; empty if they do not."""
        return sorted(self._shut_for)

    def shut(self, why: str) -> None:
        """Calls wait until everyone who shut the gate has opened it: a publication does not end its owner's pause."""
        self._shut_for.add(why)
        self._gate.clear()

    def open(self, why: str) -> None:
        self._shut_for.discard(why)
        if not self._shut_for:
            self._gate.set()

    async def known(self) -> None:
        """Returns once whoever chooses from it goes by how it stands: at once where all share this memory."""

    async def quiet(self, replica: Replica) -> None:
        """Returns once no call runs on the replica."""
        await replica.idle.wait()

    async def passed(self, wait_s: float) -> bool:
        """True once no publication is running; False if that took too long."""
        if self._gate.is_set():
            return True
        try:
            async with asyncio.timeout(wait_s):
                await self._gate.wait()
        except TimeoutError:
            return False
        return True
