"""What the two planes share: one value of everything that the composition made; and the part of it that changes the
pool, which is also there where calls are served by other processes."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from forge.proxy.config import ProxyConfig
from forge.proxy.door.keys import Keys
from forge.proxy.ids import IdSource
from forge.proxy.metrics import Metrics
from forge.proxy.recording.recorder import Recorder
from forge.proxy.sessions.histories import Histories
from forge.proxy.sessions.history import Shared
from forge.proxy.sessions.registry import Registry
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.client import EngineClient
from forge.proxy.upstreams.pool import Pool, Replica
from forge.proxy.vitals import Vitals
from forge.storage.journal import JournalFull
from forge.storage.media import MediaStore

log = logging.getLogger(__name__)


class Upstreams(Protocol):
    """What it takes to change which policy servers there are and what they serve."""

    @property
    def config(self) -> ProxyConfig: ...

    @property
    def pool(self) -> Pool: ...

    @property
    def client(self) -> EngineClient: ...

    @property
    def ports(self) -> tuple[int, ...]: ...

    def note_policy(self, replica: Replica) -> None:
        """Something was published to the replica: a restart remembers what."""


@dataclass(slots=True, kw_only=True)
class Deps:
    config: ProxyConfig
    recorder: Recorder
    media: MediaStore
    keys: Keys
    ids: IdSource
    registry: Registry
    vitals: Vitals
    shared: Shared
    histories: Histories
    pool: Pool
    client: EngineClient
    metrics: Metrics = field(default_factory=Metrics)
    draining: bool = False
    """SIGTERM came: no new calls."""

    ports: tuple[int, ...] = ()
    """Those that we listen on ourselves."""
    base_url: str = ""
    """Of the data plane, without ``/v1``; known once it listens."""

    def policy(self) -> Policy:
        """The policy that a session opened now would meet."""
        replica = self.pool.first()
        return replica.policy if replica is not None else Policy()

    def note_policy(self, replica: Replica) -> None:
        """Something was published to the replica: a restart remembers what."""
        policy = replica.policy
        assert policy.version is not None
        try:
            self.recorder.policy(replica.url, policy.version, policy.lineage, policy.digest)
        except JournalFull as error:
            # Each call names its version; only what a restart would remember is missing.
            log.warning("publication not recorded: %s", error.message)
