"""What several workers and their parent say of themselves as one: health, metrics, and the state ``forge top`` shows.

Owns how numbers of several processes become one: calls add up; what the data directory and the policy servers say is
the same everywhere and counts once; of lags the longest counts. The numbers are asked for when somebody asks here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from forge import __version__
from forge.proxy.control.health import JOURNAL_FAILS, SHOWN_MAX, disk_states, replica_brief
from forge.proxy.control.wire import reply
from forge.proxy.deps import Upstreams
from forge.proxy.recording.decoding import DecoderProcess
from forge.proxy.upstreams.pool import State
from forge.proxy.workers.child import WorkerProcess
from forge.proxy.workers.crew import Crew
from forge.proxy.workers.desk import Workers
from forge.proxy.workers.disk import DiskWatch
from forge.storage.errors import Unavailable

GREATEST: Final = frozenset(
    {
        *("forge_rows", "forge_tokens", "forge_untrainable", "forge_replica_up", "forge_policy_version"),
        *("forge_journal_flush_lag_seconds", "forge_decoder_lag_seconds"),
    }
)
"""Metrics of what is one for all workers, and lags; others add up."""

BIRTH: Final = "_created"
"""When a process began to count: of several there is no such time."""


class _Lag(msgspec.Struct):
    lag_s: float
    lag_bytes: int
    rows: int


class _Status(msgspec.Struct):
    """What a worker's ``/status`` says that it alone knows."""

    unready: list[str]
    sessions: list[dict[str, Any]]
    sessions_open: int
    sessions_max: int
    calls_running: int
    calls_ended: int
    calls_per_s: float
    unrecorded: int
    prompt_tokens: int
    output_tokens: int
    tokens_per_s: float
    untrainable: dict[str, int]
    flush_lag_s: float
    decoder: _Lag


class Overview:
    def __init__(
        self,
        parent: Upstreams,
        base_url: str,
        crew: Crew,
        http: Workers,
        decoder: DecoderProcess | None,
        disk: DiskWatch,
    ) -> None:
        """``base_url``: with ``/v1``."""
        self._parent = parent
        self._base_url = base_url
        self._crew = crew
        self._http = http
        self._decoder = decoder
        self._disk = disk
        self._started = time.monotonic()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._health),
            web.get("/readyz", self._ready),
            web.get("/status", self._status),
        ]

    async def _health(self, request: web.Request) -> web.Response:
        return reply({"status": "ok", "base_url": self._base_url})

    async def _ready(self, request: web.Request) -> web.Response:
        pool, disk, states = self._parent.pool, self._disk.disk, await self._states()
        servers = [replica.state for replica in pool.all()]
        why = self._unready(states.values())
        said = {
            "ready": not why,
            "why": why,
            "warnings": self._warnings(states.values()),
            "policy_servers_up": State.UP in servers,
            "policy_servers": {state.value: servers.count(state) for state in State},
            "open": pool.is_open,
            "disk": {"writes": JOURNAL_FAILS not in why, "free": disk.free, "used": disk.total},
            "decoder": self._lags(states.values()),
        }
        return reply(said, 503 if why else 200)

    async def _status(self, request: web.Request) -> web.Response:
        disk, by_worker = self._disk.disk, await self._states()
        states = by_worker.values()
        sessions = sorted((s for each in states for s in each.sessions), key=lambda session: session["idle_s"])
        newest = max(states, key=lambda each: each.prompt_tokens, default=None)
        return reply(
            {
                "version": __version__,
                "run_id": self._parent.config.run_id,
                "base_url": self._base_url,
                "up_s": time.monotonic() - self._started,
                "unready": self._unready(states),
                "warnings": self._warnings(states),
                "workers": [_worker(worker, by_worker.get(worker.number)) for worker in self._crew.workers],
                "sessions": sessions[:SHOWN_MAX],
                "sessions_open": sum(each.sessions_open for each in states),
                "sessions_max": sum(each.sessions_max for each in states),
                "calls_running": sum(each.calls_running for each in states),
                "calls_ended": sum(each.calls_ended for each in states),
                "calls_per_s": sum(each.calls_per_s for each in states),
                "unrecorded": sum(each.unrecorded for each in states),
                "prompt_tokens": newest.prompt_tokens if newest else 0,
                "output_tokens": newest.output_tokens if newest else 0,
                "tokens_per_s": max((each.tokens_per_s for each in states), default=0.0),
                "untrainable": newest.untrainable if newest else {},
                "flush_lag_s": max((each.flush_lag_s for each in states), default=0.0),
                "decoder": self._lags(states),
                "disk": {"used": disk.used, "free": disk.free, "budget": self._parent.config.disk_budget},
                "replicas": [replica_brief(replica) for replica in self._parent.pool.all()],
            }
        )

    async def _states(self) -> dict[int, _Status]:
        """Of the workers that serve."""
        await self._parent.pool.known()
        said = await self._asked("/status")
        return {number: msgspec.json.decode(body, type=_Status) for number, body in said.items()}

    async def _asked(self, path: str) -> dict[int, bytes]:
        up = [worker.number for worker in self._crew.workers if worker.up]
        said = await asyncio.gather(*(self._http.ask(number, path) for number in up), return_exceptions=True)
        found = dict[int, bytes]()
        for number, body in zip(up, said, strict=True):
            if isinstance(body, bytes):
                found[number] = body
            elif not isinstance(body, Unavailable):
                raise body
        return found

    def _unready(self, states: Iterable[_Status]) -> list[str]:
        said = dict.fromkeys(why for each in states for why in each.unready)
        return list(said) if any(worker.up for worker in self._crew.workers) else ["no worker serves"]

    def _warnings(self, states: Iterable[_Status]) -> list[str]:
        lag_s, limit_s = self._lags(states)["lag_s"], self._parent.config.limits.decoder_lag_s
        decoder, refuses = self._decoder, self._disk.refuses
        down = [worker.number for worker in self._crew.workers if not worker.up]
        reasons = (
            (bool(refuses), f"no new sessions: {refuses}"),
            (decoder is not None and not decoder.alive, "the decoder is down, and started again"),
            (decoder is not None and lag_s > limit_s, f"the decoder is {lag_s:.0f} s behind; the journal grows"),
            (bool(down), f"workers that are down, and started again: {', '.join(map(str, down))}"),
        )
        return [why for holds, why in reasons if holds]

    def _lags(self, states: Iterable[_Status]) -> dict[str, Any]:
        lags = [each.decoder for each in states]
        return {
            "up": self._decoder is not None and self._decoder.alive,
            "lag_s": max((each.lag_s for each in lags), default=0.0),
            "lag_bytes": sum(each.lag_bytes for each in lags),
            "rows": max((each.rows for each in lags), default=0),
        }

    async def _metrics(self, request: web.Request) -> web.Response:
        said = await self._asked("/metrics")
        ours = disk_states(self._disk.disk, decoder=self._decoder is not None and self._decoder.alive)
        registry = CollectorRegistry()
        registry.register(_Added([body.decode() for body in said.values()], list(ours)))
        return web.Response(body=generate_latest(registry), content_type="text/plain")


def _worker(worker: WorkerProcess, state: _Status | None) -> dict[str, Any]:
    return {
        "number": worker.number,
        "pid": worker.pid,
        "up": worker.up,
        "starts": worker.starts,
        "sessions": state.sessions_open if state else 0,
        "running": state.calls_running if state else 0,
        "calls": state.calls_ended if state else 0,
        "calls_per_s": state.calls_per_s if state else 0.0,
    }


class _Added(Collector):
    """The metrics of several processes as those of one; of ``ours`` no worker knows the value."""

    def __init__(self, texts: Sequence[str], ours: Sequence[Metric]) -> None:
        self._texts = texts
        self._ours = ours

    def collect(self) -> Iterator[Metric]:
        known = {metric.name for metric in self._ours}
        families: dict[str, Metric] = {}
        values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
        for text in self._texts:
            for metric in text_string_to_metric_families(text):
                if metric.name in known or metric.name.endswith(BIRTH):
                    continue
                families.setdefault(metric.name, metric)
                found = values.setdefault(metric.name, {})
                for sample in metric.samples:
                    key = sample.name, tuple(sorted(sample.labels.items()))
                    more = max if metric.name in GREATEST else _sum
                    found[key] = more(found.get(key, 0.0), sample.value)
        for name, metric in families.items():
            metric.samples = [Sample(of, dict(labels), value) for (of, labels), value in values[name].items()]
            yield metric
        yield from self._ours

    def describe(self) -> Iterable[Metric]:
        return []  # else it is asked when it is registered


def _sum(one: float, other: float) -> float:
    return one + other
