"""The proxy's counters, in a registry of their own so that several proxies can live in one process."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

FIRST_BYTE_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CALL_BUCKETS: Final = (0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["dialect", "status", "kind"]
        self.calls = Counter("forge_calls", "Calls by how they ended", labels, registry=self.registry)
        self.in_flight = Gauge("forge_calls_in_flight", "Calls running now", registry=self.registry)
        self.refused = Counter(
            "forge_refused", "Requests refused before they were calls", ["code"], registry=self.registry
        )
        self.resent = Counter("forge_resent", "Attempts beyond a call's first", registry=self.registry)
        self.untrainable = Counter(
            "forge_untrainable",
            "Rows of closed sessions that may not reach a gradient, by reason",
            ["reason"],
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "forge_first_byte_seconds",
            "From open to the engine's first byte",
            buckets=FIRST_BYTE_BUCKETS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "forge_call_seconds", "From open to close", buckets=CALL_BUCKETS, registry=self.registry
        )
        self.sessions = Gauge("forge_sessions_open", "Open sessions", registry=self.registry)
        self.flush_lag = Gauge(
            "forge_journal_flush_lag_seconds", "Age of the oldest unflushed frame", registry=self.registry
        )
        self.journal_failures = Gauge(
            "forge_journal_failures", "Frames that could not be written", registry=self.registry
        )
        self.replica_up = Gauge("forge_replica_up", "1 if the replica takes calls", ["replica"], registry=self.registry)
        self.policy_version = Gauge(
            "forge_policy_version", "Version a replica serves", ["replica"], registry=self.registry
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
