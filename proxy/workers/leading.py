"""The pool of the parent: it says which policy servers there are, and the workers choose from them.

Owns that nothing counts as changed before every worker goes by it: so a publication that has shut the gate meets no
call that did not see it shut.
"""

from __future__ import annotations

from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.pool import Pool, Replica
from forge.proxy.workers.crew import Crew
from forge.proxy.workers.messages import Follow, ReplicaState


class LeadingPool(Pool):
    """``crew`` is set once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.crew: Crew | None = None
        self.published: dict[str, Policy] = {}
        """By replica: what was published to it last."""
        self.refuses = ""
        """Why no new sessions are taken."""

    def says(self, number: int) -> Follow:
        """How everything stands."""
        return Follow(
            number=number,
            replicas=[ReplicaState.of(replica) for replica in self.all()],
            shut_for=self.shut_for,
            published=self.published,
            refuses=self.refuses,
        )

    async def known(self) -> None:
        assert self.crew is not None
        running = await self.crew.tell()
        for replica in self.all():
            replica.in_flight = running.get(replica.url, 0)

    async def quiet(self, replica: Replica) -> None:
        assert self.crew is not None
        await self.crew.quiet(replica.url)
