"""The proxy's counters, in a registry of their own so that several proxies can live in one process.

What a call counts is counted where it happens; what has a state of its own (sessions, replicas, disk, decoder) is read
when somebody asks. Of the decoder's counts, which are those of the whole data directory, every proxy on it says the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

FIRST_BYTE_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CALL_BUCKETS: Final = (0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
ADDED_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ["dialect", "status", "kind"]
        self.calls = Counter("forge_calls", "Calls by how they ended", labels, registry=self.registry)
        self.in_flight = Gauge("forge_calls_in_flight", "Calls running now", registry=self.registry)
        self.streams = Gauge("forge_streams_open", "Of these, answers that stream", registry=self.registry)
        self.refused = Counter(
            "forge_refused", "Requests refused before they were calls", ["code"], registry=self.registry
        )
        self.resent = Counter("forge_resent", "Attempts beyond a call's first", registry=self.registry)
        self.first_byte = Histogram(
            "forge_first_byte_seconds",
            "From open to the engine's first byte",
            buckets=FIRST_BYTE_BUCKETS,
            registry=self.registry,
        )
        self.added = Histogram(
            "forge_added_first_token_seconds",
            "Of a stream's first token: from the request to open, and from the engine's first byte to the client's",
            buckets=ADDED_BUCKETS,
            registry=self.registry,
        )
        self.duration = Histogram(
            "forge_call_seconds", "From open to close", buckets=CALL_BUCKETS, registry=self.registry
        )
        self.ended = 0
        """Calls that have ended, of any kind."""

    def begin(self, *, stream: bool) -> None:
        self.in_flight.inc()
        if stream:
            self.streams.inc()

    def end(self, *, stream: bool) -> None:
        self.in_flight.dec()
        if stream:
            self.streams.dec()

    def read(self, states: Callable[[], Iterable[Metric]]) -> None:
        """``states``: called for every answer."""
        self.registry.register(_States(states))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _States(Collector):
    def __init__(self, states: Callable[[], Iterable[Metric]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        return self._states()

    def describe(self) -> Iterable[Metric]:
        return []  # else it is asked before there is anything to say


def gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_, value=value)


def gauges(name: str, help_: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=[label])
    for each, value in values:
        family.add_metric([each], value)
    return family


def counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_, value=value)


def counters(name: str, help_: str, label: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=[label])
    for each, value in values:
        family.add_metric([each], value)
    return family
