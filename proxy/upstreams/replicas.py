"""How a policy server joins the pool, and how one that went down comes back.

A server that restarted has the weights it starts with, not those that were published to it, and perhaps another
template: it comes back only if it says that it serves the version we know, and is probed again first. A restart
between two calls is noticed by when the server's process started, where it says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from forge.proxy.config import Record, check_upstream
from forge.proxy.deps import Upstreams
from forge.proxy.engines.base import Abilities
from forge.proxy.sessions.spec import Policy
from forge.proxy.upstreams.client import BrokeOff, NotBegun
from forge.proxy.upstreams.identity import identify, started
from forge.proxy.upstreams.loops import check_other
from forge.proxy.upstreams.pool import Replica, State
from forge.proxy.upstreams.probe import probe, require_trainable, wait_up
from forge.storage.errors import Unavailable, Untrainable

log = logging.getLogger(__name__)

RESTART_TICKS = 10
"""Health checks from one look for restarts to the next: far less time than a model takes to load."""
FIRST_VERSION = 0
"""Of a server that names no version: what it started with, until something is published to it."""


async def join(deps: Upstreams, url: str, *, start_s: float, remembered: Mapping[str, Policy] | None = None) -> Replica:
    """Waits for the server, probes it and adds it. Raises ``Unavailable``, ``BadInput`` or ``Untrainable``."""
    url = check_upstream(url)
    config = deps.config
    await check_other(url, deps.ports)
    await wait_up(deps.client, url, start_s, log.warning)
    engine, plain = await identify(deps.client, url, config.engine)
    engine, found = await probe(deps.client, url, engine, plain)
    if config.record is Record.STRICT:
        require_trainable(url, engine, found)
    known = deps.pool.get(url)
    if known is not None:
        return known  # added twice at once: the calls of the first must stay counted
    policy = _policy(found, url, remembered or {})._replace(adapter=found.adapter)
    replica = Replica(url, engine, found, policy=policy, weights=found.weights)
    deps.pool.add(replica)
    log.info("policy server joined: url=%s engine=%s version=%s %s", url, engine.name, replica.policy.version, found)
    return replica


async def watch(deps: Upstreams) -> None:
    """Brings servers back that answer again, and notices those that restarted. Runs as long as the proxy."""
    tick = 0
    while True:
        await asyncio.sleep(deps.config.limits.health_s)
        tick += 1
        for replica in deps.pool.all():
            if replica.state == State.UP and not tick % RESTART_TICKS:
                await _look_for_restart(deps, replica)
            if replica.state == State.DOWN and not replica.bad_weights:
                await _look(deps, replica)
        await deps.pool.known()


async def _look_for_restart(deps: Upstreams, replica: Replica) -> None:
    known = replica.abilities.started
    now = await started(deps.client, replica.url, replica.engine) if known is not None else None
    if now is not None and now != known:
        deps.pool.down(replica, "it was restarted")
        log.warning("policy server was restarted: url=%s", replica.url)


async def _look(deps: Upstreams, replica: Replica) -> None:
    try:
        status, _ = await deps.client.json("GET", f"{replica.url}/v1/models")
        if status != 200:
            return
        _, plain = await identify(deps.client, replica.url, replica.engine.name)
    except (NotBegun, BrokeOff):
        return
    if replica.state != State.DOWN:
        return  # a publication was faster
    serves = _policy(plain, replica.url, {}).version
    if serves != replica.policy.version:
        _leave_out(replica, f"it came back with version {serves}, not {replica.policy.version}; publish to it again")
        return
    if (plain.started is None or plain.started != replica.abilities.started) and not await _again(deps, replica, plain):
        return
    deps.pool.up(replica)
    log.info("policy server is back: url=%s", replica.url)


async def _again(deps: Upstreams, replica: Replica, plain: Abilities) -> bool:
    """Probes a server that is another process than before, or may be. False: it does not come back yet."""
    before = replica.abilities
    try:
        engine, found = await probe(deps.client, replica.url, replica.engine, plain)
        if deps.config.record is Record.STRICT:
            require_trainable(replica.url, engine, found)
    except Unavailable as error:
        log.info("policy server is not back yet: %s", error.message)
        return False
    except Untrainable as error:
        _leave_out(replica, error.message)
        return False
    for name in ("template_hash", "tokenizer_hash", "model", "engine_version"):
        if getattr(found, name) != getattr(before, name):
            log.warning("policy server %s came back with another %s", replica.url, name)
    replica.engine, replica.abilities, replica.weights = engine, found, found.weights
    replica.policy = replica.policy._replace(adapter=found.adapter)
    return replica.state == State.DOWN


def _leave_out(replica: Replica, why: str) -> None:
    replica.bad_weights = True
    replica.reason = why
    log.error("policy server %s left out: %s", replica.url, why)


def _policy(found: Abilities, url: str, remembered: Mapping[str, Policy]) -> Policy:
    """What the server says it serves; the lineage from what was published here, to this server or of that digest."""
    version = FIRST_VERSION if found.weight_version is None else found.weight_version
    if found.weight_lineage is not None:
        return Policy(version, found.weight_lineage, found.weight_digest)
    own = remembered.get(url)
    if own is not None and own.version == version and found.weight_digest in (None, own.digest):
        return own
    for known in remembered.values():
        if known.version == version and known.digest is not None and known.digest == found.weight_digest:
            return known
    return Policy(version, None, found.weight_digest)
