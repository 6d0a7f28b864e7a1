"""What the two planes share: one value of everything that the composition made."""

from __future__ import annotations

from dataclasses import dataclass, field

from forge.proxy.config import ProxyConfig
from forge.proxy.door.keys import Keys
from forge.proxy.ids import IdSource
from forge.proxy.metrics import Metrics
from forge.proxy.recording.recorder import Recorder
from forge.proxy.sessions.history import Shared
from forge.proxy.sessions.registry import Registry
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.client import EngineClient
from forge.proxy.upstreams.pool import Pool
from forge.proxy.vitals import Vitals
from forge.storage.media import MediaStore


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
