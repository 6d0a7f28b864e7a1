"""The proxy's counters, in a registry of their own so that several proxies can live in one process.

What a call counts is counted where it happens; what has a state of its own (sessions, replicas, disk, decoder) is read
when somebody asks. Of the decoder's counts, which are those of the whole data directory, every proxy on it says the
same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

FIRST_BYTE_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CALL_BUCKETS: Final = (0.05, 0.25, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
ADDED_BUCKETS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
ENDS: Final = ("dialect", "status", "kind")


class Histogram:
    """Seconds, counted by the bucket they fall into; prometheus-client's own takes ten times as long."""

    def __init__(self, name: str, help_: str, buckets: tuple[float, ...]) -> None:
        self._name = name
        self._help = help_
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._buckets, seconds)] += 1
        self._sum += seconds

    def metric(self) -> Metric:
        ends = [*(str(float(bucket)) for bucket in self._buckets), "+Inf"]
        buckets = list(zip(ends, map(float, accumulate(self._counts)), strict=True))
        return HistogramMetricFamily(self._name, self._help, buckets=buckets, sum_value=self._sum)


class Metrics:
    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str, str]] = Counter()
        """Ended ones, by ``ENDS``."""
        self.in_flight = 0
        self.streams = 0
        """Of these, answers that stream."""
        self.refused: Counter[str] = Counter()
        """By code."""
        self.resent = 0
        self.first_byte = Histogram(
            "forge_first_byte_seconds", "From open to the engine's first byte", FIRST_BYTE_BUCKETS
        )
        self.added = Histogram(
            "forge_added_first_token_seconds",
            "Of a stream's first token: from the request to open, and from the engine's first byte to the client's",
            ADDED_BUCKETS,
        )
        self.duration = Histogram("forge_call_seconds", "From open to close", CALL_BUCKETS)
        self.registry = CollectorRegistry()
        self.read(self._counted)

    @property
    def ended(self) -> int:
        """Calls that have ended, of any kind."""
        return self.calls.total()

    def begin(self, *, stream: bool) -> None:
        self.in_flight += 1
        self.streams += stream

    def end(self, *, stream: bool) -> None:
        self.in_flight -= 1
        self.streams -= stream

    def _counted(self) -> Iterable[Metric]:
        calls = CounterMetricFamily("forge_calls", "Calls by how they ended", labels=ENDS)
        for labels, count in self.calls.items():
            calls.add_metric(labels, count)
        yield calls
        yield gauge("forge_calls_in_flight", "Calls running now", self.in_flight)
        yield gauge("forge_streams_open", "Of these, answers that stream", self.streams)
        yield counters("forge_refused", "Requests refused before they were calls", "code", self.refused.items())
        yield counter("forge_resent", "Attempts beyond a call's first", self.resent)
        yield from (histogram.metric() for histogram in (self.first_byte, self.added, self.duration))

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
