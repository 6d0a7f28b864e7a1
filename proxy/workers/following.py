"""The pool of a worker: as the parent says, but for the calls that run here and a replica that this worker met dead.

Which replica a session sticks to, and how busy each one is, goes by this worker's own calls.
"""

from __future__ import annotations

from collections.abc import Callable

from forge.proxy.upstreams.pool import PAUSED, PUBLISHING, Pool, Replica, State
from forge.proxy.workers.messages import Follow


class FollowingPool(Pool):
    def __init__(self, report: Callable[[str, str], None]) -> None:
        """``report``: tells the parent of a replica that cannot be reached, and why."""
        super().__init__()
        self._report = report

    def follow(self, said: Follow, *, draining: bool) -> None:
        """``draining``: nobody waits at the gate any more."""
        for url in {replica.url for replica in self.all()} - {each.url for each in said.replicas}:
            self.remove(url)
        for each in said.replicas:
            known = self.get(each.url)
            replica = each.put_on(known)
            if known is None:
                self.add(replica)
        for why in (PAUSED, PUBLISHING):
            if why in said.shut_for and not draining:
                self.shut(why)
            else:
                self.open(why)

    def down(self, replica: Replica, reason: str) -> None:
        met = replica.state is State.UP
        super().down(replica, reason)
        if met:
            self._report(replica.url, reason)

    def in_flight(self) -> dict[str, int]:
        """Calls running on each replica."""
        return {replica.url: replica.in_flight for replica in self.all()}
