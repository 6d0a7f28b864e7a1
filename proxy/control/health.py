"""The control plane's routes for whoever watches: alive, ready, metrics, and the state that ``forge top`` shows.

Owns what each says and when a proxy is ready; the numbers are others'. Ready means that calls are served: a balancer
that takes an unready proxy out takes its running sessions too. What is not that bad yet is a warning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from aiohttp import web
from prometheus_client.core import Metric

from forge import __version__
from forge.proxy.control.wire import reply
from forge.proxy.deps import Deps
from forge.proxy.metrics import counter, counters, gauge, gauges
from forge.proxy.sessions.live import Live
from forge.proxy.upstreams.pool import Replica, State
from forge.proxy.vitals import Disk

JOURNAL_FAILS: Final = "the journal cannot be written"
SHOWN_MAX: Final = 200
"""Sessions that ``/status`` tells of: those used last."""


class HealthRoutes:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        deps.metrics.read(self._states)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/status", self._status),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return reply({"status": "ok", "base_url": f"{self._deps.base_url}/v1"})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._deps.metrics.text(), content_type="text/plain")

    async def _ready(self, request: web.Request) -> web.Response:
        deps, vitals = self._deps, self._deps.vitals
        states = [replica.state for replica in deps.pool.all()]
        why = self._unready()
        said = {
            "ready": not why,
            "why": why,
            "warnings": self._warnings(),
            "policy_servers_up": State.UP in states,
            "policy_servers": {state.value: states.count(state) for state in State},
            "open": deps.pool.is_open,
            "disk": {"writes": not deps.recorder.failing, "free": vitals.disk.free, "used": vitals.disk.total},
            "decoder": _decoder(deps),
        }
        return reply(said, 503 if why else 200)

    def _unready(self) -> list[str]:
        """Why calls would not be served now."""
        deps = self._deps
        reasons = (
            (not any(replica.state == State.UP for replica in deps.pool.all()), "no policy server is up"),
            (not deps.pool.is_open, "calls wait: paused, or weights are being published"),
            (deps.draining, "it is stopping"),
            (deps.recorder.failing, JOURNAL_FAILS),
        )
        return [why for holds, why in reasons if holds]

    def _warnings(self) -> list[str]:
        """What refuses new sessions, or will fill the disk."""
        vitals, limit_s = self._deps.vitals, self._deps.config.limits.decoder_lag_s
        decoder, lag_s = vitals.decoder, vitals.decoded.lag_s
        reasons = (
            (bool(vitals.over_budget), f"no new sessions: {vitals.over_budget}"),
            (decoder is not None and not decoder.alive, "the decoder is down, and started again"),
            (decoder is not None and lag_s > limit_s, f"the decoder is {lag_s:.0f} s behind; the journal grows"),
        )
        return [why for holds, why in reasons if holds]

    async def _status(self, request: web.Request) -> web.Response:
        deps, vitals = self._deps, self._deps.vitals
        calls_s, tokens_s = vitals.rates
        open_now = sorted(deps.registry.open_ones(), key=lambda live: live.used, reverse=True)
        counts = vitals.decoded.counts
        return reply(
            {
                "version": __version__,
                "run_id": deps.config.run_id,
                "base_url": f"{deps.base_url}/v1",
                "up_s": time.monotonic() - vitals.started,
                "unready": self._unready(),
                "warnings": self._warnings(),
                "sessions": [_session(live) for live in open_now[:SHOWN_MAX]],
                "sessions_open": len(open_now),
                "sessions_max": deps.registry.limit,
                "calls_running": sum(len(live.running) for live in open_now),
                "calls_ended": deps.metrics.ended,
                "calls_per_s": calls_s,
                "unrecorded": deps.recorder.unrecorded,
                "prompt_tokens": counts.prompt_tokens,
                "output_tokens": counts.output_tokens,
                "tokens_per_s": tokens_s,
                "untrainable": counts.untrainable,
                "flush_lag_s": deps.recorder.journal.flush_lag_s,
                "decoder": _decoder(deps),
                "disk": {"used": vitals.disk.used, "free": vitals.disk.free, "budget": deps.config.disk_budget},
                "replicas": [replica_brief(replica) for replica in deps.pool.all()],
            }
        )

    def _states(self) -> Iterator[Metric]:
        deps, vitals = self._deps, self._deps.vitals
        recorder, counts = deps.recorder, vitals.decoded.counts
        yield gauge("forge_sessions_open", "Open sessions", len(deps.registry))
        yield gauge("forge_calls_unrecorded", "Ended calls whose end is not in the journal", recorder.unrecorded)
        yield counter("forge_journal_failures", "Frames that could not be written", recorder.failures)
        lag = recorder.journal.flush_lag_s
        yield gauge("forge_journal_flush_lag_seconds", "Age of the oldest frame that is not on disk", lag)
        yield from disk_states(vitals.disk, decoder=vitals.decoder is not None and vitals.decoder.alive)
        yield gauge("forge_decoder_lag_seconds", "Since the decoder passed all cuts", vitals.decoded.lag_s)
        yield gauge("forge_decoder_lag_bytes", "Journal that is not decoded", vitals.decoded.lag_bytes)
        yield counter("forge_rows", "Rows of calls in the dataset", counts.rows)
        tokens = (("prompt", counts.prompt_tokens), ("output", counts.output_tokens))
        yield counters("forge_tokens", "Tokens in the dataset", "of", tokens)
        untrainable = sorted(counts.untrainable.items())
        yield counters("forge_untrainable", "Rows that may not reach a gradient", "reason", untrainable)
        replicas = deps.pool.all()
        up = [(replica.url, float(replica.state == State.UP)) for replica in replicas]
        yield gauges("forge_replica_up", "1 if the replica takes calls", "replica", up)
        running = [(replica.url, float(replica.in_flight)) for replica in replicas]
        yield gauges("forge_replica_in_flight", "Calls running on it", "replica", running)
        versions = [(r.url, float(r.policy.version)) for r in replicas if r.policy.version is not None]
        yield gauges("forge_policy_version", "Version a replica serves", "replica", versions)


def disk_states(disk: Disk, *, decoder: bool) -> Iterator[Metric]:
    """What is one for all processes of a proxy."""
    yield gauge("forge_journal_bytes", "Journal on disk", disk.used.get("journal", 0))
    yield gauges("forge_disk_bytes", "Data directory by folder", "folder", sorted(disk.used.items()))
    if disk.free is not None:
        yield gauge("forge_disk_free_bytes", "Left on its file system", disk.free)
    yield gauge("forge_decoder_up", "1 if this proxy's decoder runs", decoder)


def _decoder(deps: Deps) -> dict[str, Any]:
    vitals = deps.vitals
    return {
        "up": vitals.decoder is not None and vitals.decoder.alive,
        "lag_s": round(vitals.decoded.lag_s, 3),
        "lag_bytes": vitals.decoded.lag_bytes,
        "rows": vitals.decoded.counts.rows,
    }


def _session(live: Live) -> dict[str, Any]:
    now, record = time.monotonic(), live.record
    return {
        "session_id": live.id,
        "run_id": record.run_id,
        "task_id": record.task_id,
        "harness": record.harness,
        "calls": live.calls,
        "running": len(live.running),
        "open_s": now - live.opened,
        "idle_s": 0.0 if live.running else now - live.used,
        "replica": live.replica,
    }


def replica_brief(replica: Replica) -> dict[str, Any]:
    """What both lists of policy servers say of one."""
    return {
        "url": replica.url,
        "engine": replica.engine.name,
        "state": replica.state.value,
        "reason": replica.reason,
        "in_flight": replica.in_flight,
        "policy_version": replica.policy.version,
    }
