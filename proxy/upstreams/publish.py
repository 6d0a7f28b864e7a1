"""New weights for the pool, one operation: pause, load, reset every cache, check the digest, set the version, resume.

A replica that fails after loading began serves unknown weights: it leaves the pool, paused, until a publication
succeeds on it. Calls that arrive meanwhile wait at the pool's gate; those that run are held, continued or failed as
the mode says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from forge.proxy.deps import Upstreams
from forge.proxy.engines.adapters import Listed, listed
from forge.proxy.engines.base import Publication, Step
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.client import BrokeOff, NotBegun
from forge.proxy.upstreams.identity import stated
from forge.proxy.upstreams.plan import Plan, Publish, plans
from forge.proxy.upstreams.pool import PUBLISHING, Replica, State
from forge.storage.errors import BadInput, Unavailable

log = logging.getLogger(__name__)


class Published(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    replicas: list[str]
    failed: dict[str, str]
    """Replica to what went wrong; these serve no more calls."""


class _StepFailed(Exception):
    pass


class _Refused(_StepFailed):
    """The server answered, and did not do it."""


class Publisher:
    def __init__(self, deps: Upstreams) -> None:
        self._deps = deps
        self._lock = asyncio.Lock()

    async def publish(self, spec: Publish) -> Published:
        """Raises ``BadInput`` for a version that does not grow, ``Unavailable`` if no replica could take it."""
        async with self._lock:
            replicas = [r for r in self._deps.pool.all() if r.state != State.DRAINING]
            self._check(spec, replicas)
            rolling = spec.rolling and len(replicas) > 1
            try:
                failed = await (self._rolling if rolling else self._at_once)(spec, replicas)
            finally:
                await self._deps.pool.known()
        done = [r.url for r in replicas if r.url not in failed]
        if not done:
            raise Unavailable(
                f"version {spec.version} could not be published: {'; '.join(failed.values())}",
                "look at the policy server's log, then publish again",
            )
        return Published(version=spec.version, replicas=done, failed=failed)

    def _check(self, spec: Publish, replicas: Sequence[Replica]) -> None:
        if not replicas:
            raise Unavailable("there is no policy server to publish to", "add one: POST /upstreams")
        if spec.by_trainer and spec.path is not None:
            raise BadInput(
                "path and by_trainer exclude each other", "leave the one away that does not load the weights"
            )
        if spec.adapter is not None and spec.path is None:
            raise BadInput(
                "an adapter comes without path: servers that do not take it need the whole weights",
                "name the directory of the merged model as path",
            )
        for replica in replicas:
            known = replica.policy
            if known.version is not None and known.lineage == spec.lineage and spec.version < known.version:
                raise BadInput(
                    f"version {spec.version} is lower than {known.version}, which {replica.url} serves",
                    "versions of one lineage grow; give a higher one, or another lineage",
                )

    async def _at_once(self, spec: Publish, replicas: Sequence[Replica]) -> dict[str, str]:
        pool = self._deps.pool
        pool.shut(PUBLISHING)
        try:
            await pool.known()
            if spec.mode == "wait" and not spec.by_trainer:
                await self._idle(replicas)
            results = await asyncio.gather(*(self._replica(spec, r) for r in replicas))
        finally:
            pool.open(PUBLISHING)
        return {r.url: why for r, why in zip(replicas, results, strict=True) if why is not None}

    async def _rolling(self, spec: Publish, replicas: Sequence[Replica]) -> dict[str, str]:
        failed: dict[str, str] = {}
        for replica in replicas:
            before, replica.state = replica.state, State.LOADING
            await self._deps.pool.known()
            if spec.mode == "wait":
                await self._idle([replica])
            why = await self._replica(spec, replica)
            if why is not None:
                failed[replica.url] = why
            if replica.state == State.LOADING:
                replica.state = before
        return failed

    async def _idle(self, replicas: Sequence[Replica]) -> None:
        """Waits for running calls; those that outlast the wait are left to the servers' own pause."""
        try:
            async with asyncio.timeout(self._deps.config.limits.hold_s):
                for replica in replicas:
                    await self._deps.pool.quiet(replica)
        except TimeoutError:
            log.warning("publication goes on although calls still run")

    async def _replica(self, spec: Publish, replica: Replica) -> str | None:
        """None when the replica serves the version; else what went wrong, and the replica is out."""
        try:
            tried = plans(spec, replica, *await self._served(replica))
        except _StepFailed as error:
            replica.state, replica.reason = State.DOWN, str(error)
            return str(error)
        if not tried:
            return f"{replica.url} ({replica.engine.name}) cannot load weights"
        plan, loading = tried[0], False
        try:
            await self._run(replica, plan.steps.pause)
            loading = True
            try:
                await self._run(replica, plan.steps.load)
            except _Refused as error:
                if plan is tried[-1]:
                    raise
                log.warning("the whole weights are loaded in the adapter's place: %s", error)
                plan = tried[-1]
                await self._run(replica, (*plan.steps.pause, *plan.steps.load))
            await self._run(replica, plan.steps.reset)
            digest = await self._digest(spec, replica, plan.steps)
            await self._run(replica, plan.steps.set_version)
        except _StepFailed as error:
            return await self._broken(replica, plan, loading, str(error))
        replica.policy = Policy(spec.version, spec.lineage, digest, plan.adapter)
        replica.weights, replica.bad_weights = plan.weights, False
        self._deps.note_policy(replica)
        await self._deps.pool.known()  # before it samples again: the end of a call that straddles this says so
        try:
            await self._run(replica, plan.steps.resume)
        except _StepFailed as error:
            self._deps.pool.down(replica, str(error))
            return str(error)
        self._deps.pool.up(replica)
        return None

    async def _served(self, replica: Replica) -> tuple[Listed, int | None]:
        """The models and the version that it names now, where that matters."""
        if not replica.abilities.adapters:
            return Listed(), None
        models = await self._step(replica, Step("GET", "/v1/models"))
        return listed(models), stated(await self._step(replica, Step("GET", "/weight_info", ok=(200, 404))))

    async def _digest(self, spec: Publish, replica: Replica, steps: Publication) -> str | None:
        if steps.digest is None:
            return spec.digest
        found = (await self._step(replica, steps.digest)).get("weight_digest")
        if spec.digest is not None and found is not None and found != spec.digest:
            raise _StepFailed(f"{replica.url} loaded weights with digest {found}, not {spec.digest}")
        return found or spec.digest

    async def _broken(self, replica: Replica, plan: Plan, loading: bool, why: str) -> str:
        log.error("publication failed: %s", why)
        if not loading:
            try:
                await self._run(replica, plan.steps.resume)
            except _StepFailed as error:
                log.warning("not resumed: %s", error)
        else:
            replica.policy = Policy()
            replica.weights = replica.weights if plan.adapter is not None else None
            replica.bad_weights = True
        replica.state, replica.reason = State.DOWN, why
        return why

    async def _run(self, replica: Replica, steps: Sequence[Step]) -> None:
        for step in steps:
            await self._step(replica, step)

    async def _step(self, replica: Replica, step: Step) -> dict[str, Any]:
        try:
            status, body = await self._deps.client.json(step.method, replica.url + step.path, step.json)
        except (NotBegun, BrokeOff) as error:
            raise _StepFailed(f"{step.method} {step.path} of {replica.url}: {error}") from error
        if status not in step.ok:
            raise _Refused(f"{step.method} {step.path} of {replica.url} answered {status}: {str(body)[:200]}")
        said = body if isinstance(body, dict) else {}
        if any(said.get(name, value) != value for name, value in step.expect.items()):
            raise _Refused(f"{step.method} {step.path} of {replica.url} did not succeed: {str(said)[:200]}")
        return said
