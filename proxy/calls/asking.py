"""Asking a policy server: which one, how often, and when not again.

A request is sent again only where the engine cannot have begun: a refused connection, or a 429 or 503 before any
body. Every attempt is kept for the row. Never repeats a generation.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

from forge.proxy.config import Limits
from forge.proxy.dialects.overlay import limit_of, with_model, without_limit
from forge.proxy.metrics import Metrics
from forge.proxy.recording.recorder import Recording
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.client import BrokeOff, EngineClient, NotBegun, Pieces, Reply
from forge.proxy.upstreams.pool import Pool, Replica

AGAIN: Final = (429, 503)
"""Statuses that say the engine has not begun."""
UNKNOWN_TO_IT: Final = (401, 407)
"""Statuses by which a server refuses our key: the harness has none of it, and cannot mend it."""
ERROR_TEXT: Final = 500
"""Characters of an engine's error that a row keeps."""


class Failed(Exception):
    """No answer of an engine can be given."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


@dataclass(slots=True, kw_only=True)
class Asking:
    """The attempts of one call."""

    replica: Replica | None
    """The one being asked, or that answered."""
    recording: Recording
    pool: Pool
    client: EngineClient
    limits: Limits
    metrics: Metrics
    attempts: list[dict[str, Any]] = field(default_factory=list)
    policy: Policy = field(default_factory=Policy)
    """What the replica served when it was asked."""
    written_for: Replica | None = field(init=False)
    latest: Policy = field(init=False)
    """The one that was asked last, and which the request names."""
    sent: Pieces = ()
    """The request as the engine that answered got it."""
    _name: str | None = None
    """Of the model, where the request was written with another."""
    _later: Reply | None = None
    """That of the last continuation."""

    def __post_init__(self) -> None:
        self.written_for = self.replica
        self.latest = self.replica.policy if self.replica is not None else Policy()

    async def send(self, path: str, pieces: Pieces) -> Reply:
        """The engine's status and headers; ``end`` must follow. Raises ``Failed``."""
        why = "no policy server is up"
        for number in range(self.limits.attempts):
            if number:
                await self._again(number)
            replica = self.replica
            if replica is None:
                if self.written_for is None:
                    break
                continue
            self.recording.attempt = number
            pieces = self.sent = self.named(pieces, replica)
            self._begin(replica)
            try:
                reply = await self.client.send("POST", replica.url + path, *pieces)
            except NotBegun as error:
                why = f"the policy server {replica.url} cannot be reached: {error}"
                self.pool.down(replica, why)
                self._note(error=why)
                self.pool.end(replica)
                continue
            except BrokeOff as error:
                self.pool.end(replica)
                message = f"the policy server {replica.url} broke off before it answered: {error}"
                raise Failed(502, "upstream_broke_off", message) from error
            except BaseException:
                self.pool.end(replica)
                raise
            wait = self._wait(reply, number)
            if wait is None:
                self._note(status=reply.status)
                return reply
            self._note(status=reply.status, error=await self._refused(reply, replica))
            await asyncio.sleep(wait)
        raise Failed(503, "policy_unavailable", why)

    async def send_without_limit(self, path: str, body: bytes, refused: Reply, why: bytes) -> Reply:
        """Once more after the engine found the prompt and the output tokens asked for too much together: it cannot
        have begun. What was edited stands among the attempts."""
        edit = {"edit": "max_tokens", "asked": limit_of(body), "sent": None}
        self.attempts[-1] |= {"error": why[:ERROR_TEXT].decode(errors="replace"), "then": edit}
        self.end(refused)
        self.metrics.resent += 1
        return await self.send(path, (without_limit(body),))

    def named(self, pieces: Pieces, replica: Replica) -> Pieces:
        """The request for what the replica serves now: the weights may be called by another name than the ones that it
        was written for."""
        before, self.latest = self.latest, replica.policy
        if before.adapter == self.latest.adapter:
            return pieces
        self._name = self.latest.adapter or replica.abilities.model
        return pieces if self._name is None else (with_model(b"".join(pieces), self._name),)

    @property
    def ended(self) -> Policy:
        """What the last token is of: other weights may have come to the replica meanwhile, but an adapter that runs
        is not exchanged."""
        now = self.replica.policy if self.replica is not None else Policy()
        return now if now.adapter == self.latest.adapter else self.latest

    def successor(self) -> Replica | None:
        """Who would go on with a generation that the engine gave up."""
        return self.pool.pick(self.replica.url if self.replica else None, like=self.written_for)

    async def look(self, replica: Replica, path: str, body: bytes | None) -> bytes | None:
        """Asks what samples nothing. None: there is no answer."""
        try:
            asked = () if body is None else (body,)
            reply = await self.client.send("POST" if asked else "GET", replica.url + path, *asked)
            try:
                said = await reply.body(self.limits.answer_bytes)
            finally:
                reply.close()
        except (NotBegun, BrokeOff):
            return None
        return said if reply.status == 200 else None

    async def go_on(self, replica: Replica, path: str, body: bytes) -> Reply | None:
        """Asks for the rest of a generation that the engine gave up; ``end`` ends this too. None: it cannot be had."""
        before = self.replica
        self.pool.begin(replica)
        try:
            reply = await self.client.send("POST", replica.url + path, body)
        except (NotBegun, BrokeOff) as error:
            self.pool.end(replica)
            self._note(error=f"the rest cannot be had: {error}")
            return None
        except BaseException:
            self.pool.end(replica)
            raise
        if reply.status != 200:
            self._note(status=reply.status, error=await self._refused(reply, replica))
            return None
        if before is not None:
            self.pool.end(before)
        if self._later is not None:
            self._later.close()
        self._later, self.replica = reply, replica
        self._note(status=reply.status)
        return reply

    def end(self, reply: Reply) -> None:
        """The answer was read, or is not wanted any more."""
        reply.close()
        if self._later is not None:
            self._later.close()
        if self.replica is not None:
            self.pool.end(self.replica)

    def _begin(self, replica: Replica) -> None:
        self.pool.begin(replica)
        self.policy = replica.policy

    async def _refused(self, reply: Reply, replica: Replica) -> str:
        try:
            body = self.client.redact(await reply.body(self.limits.error_body_bytes))
            return body[:ERROR_TEXT].decode(errors="replace")
        finally:
            reply.close()
            self.pool.end(replica)

    async def _again(self, number: int) -> None:
        """Before another attempt: lets a publication end, and chooses a replica anew."""
        self.metrics.resent += 1
        if self.replica is None or self.attempts[-1].get("status") is None:
            await asyncio.sleep(self.limits.backoff_s * 2 ** (number - 1))
        await self.pool.passed(self.limits.hold_s)
        self.replica = self.pool.pick(self.replica.url if self.replica else None, like=self.written_for)

    def _wait(self, reply: Reply, number: int) -> float | None:
        """How long to wait before asking again; None if this answer is the one."""
        if reply.status not in AGAIN or number == self.limits.attempts - 1:
            return None
        stated = reply.headers.get("retry-after", "")
        wait = float(stated) if stated.isascii() and stated.isdigit() else self.limits.backoff_s * 2**number
        return wait if wait <= self.limits.retry_after_s else None

    def _note(self, *, status: int | None = None, error: str | None = None) -> None:
        entry: dict[str, Any] = {
            "replica": self.replica.url if self.replica else "",
            "at_us": self.recording.recorder.now() - self.recording.opened_us,
        }
        if self._name is not None:
            entry["model"] = self._name
        if status is not None:
            entry["status"] = status
        if error is not None:
            entry["error"] = error
        self.attempts.append(entry)
