"""What the proxy does between calls, and how it stops: cuts, closes that the disk refused, idle implicit sessions."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from forge.proxy.deps import Deps
from forge.proxy.sessions.spec import Outcome
from forge.proxy.upstreams.pool import PAUSED, PUBLISHING
from forge.storage.journal import JournalFull, Position
from forge.storage.records import SessionStatus

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
CROWDED: Final = 0.9
"""Of the sessions that may be open: above it implicit ones make room, those that were silent longest first."""


async def upkeep(deps: Deps) -> None:
    """Runs as long as the proxy."""
    limits = deps.config.limits
    last_cut = time.monotonic()
    while True:
        await asyncio.sleep(min(TICK_S, limits.cut_s))
        deps.recorder.retry_pending()
        now = time.monotonic()
        if deps.recorder.cut_due or now - last_cut >= limits.cut_s:
            deps.recorder.cut()
            last_cut = now
        await end_implicit(deps, limits.implicit_idle_s)


async def end_implicit(deps: Deps, idle_s: float) -> None:
    """Nobody closes an implicit session: silence does. It has no reward, and says so."""
    now, registry = time.monotonic(), deps.registry
    too_many = len(registry) - int(registry.limit * CROWDED)
    for live in sorted(registry.open_ones(), key=lambda live: live.used):
        if not live.record.implicit or not live.is_open or live.running:
            continue
        if now - live.used < idle_s and too_many <= 0:
            return
        try:
            await registry.close(live, Outcome(status=SessionStatus.COMPLETED, reward=None))
        except JournalFull as error:
            log.warning("session not closed: session_id=%s %s", live.id, error.message)
            return
        too_many -= 1


async def end_run(deps: Deps) -> None:
    """Sessions whose opener was killed. Those of other runs may be waited for by others: they stay open."""
    ended = Outcome(status=SessionStatus.INTERRUPTED, reward=None, error="the run was killed")
    for live in deps.registry.open_ones():
        if live.record.run_id == deps.config.run_id:
            try:
                await deps.registry.close(live, ended)
            except JournalFull as error:
                log.warning("session not closed: session_id=%s %s", live.id, error.message)
                return


async def drain(deps: Deps) -> Position | None:
    """No new calls; running ones may end within the limit; then everything is cut. Gives where the last cut ends."""
    await end_calls(deps, deps.config.limits.drain_s)
    await end_implicit(deps, 0.0)
    if deps.config.end_sessions:
        await end_run(deps)
    deps.recorder.retry_pending()
    deps.recorder.cut()
    return deps.recorder.last_cut


async def end_calls(deps: Deps, wait_s: float) -> None:
    """No new calls; those that outlast the wait are cut off."""
    deps.draining = True
    for why in (PAUSED, PUBLISHING):
        deps.pool.open(why)  # who waits there is told that we stop
    try:
        async with asyncio.timeout(wait_s):
            for live in deps.registry.open_ones():
                await live.idle.wait()
    except TimeoutError:
        for live in deps.registry.open_ones():
            for task in live.running.values():
                task.cancel("the proxy was stopped")
            await live.idle.wait()
