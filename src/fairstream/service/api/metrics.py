"""Numbers about the service itself, counted cheaply and shown at /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Latency:
    """How long the requests of one route took."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.seconds += seconds

    def quantile(self, q: float) -> float | None:
        """Below which the share `q` of the requests lies, interpolated within its bucket; None before the first."""
        total = sum(self.counts)
        if not total:
            return None
        within = list(accumulate(self.counts))
        place = min(bisect_left(within, q * total), len(BUCKETS) - 1)
        low, before = (BUCKETS[place - 1], within[place - 1]) if place else (0.0, 0)
        return low + (BUCKETS[place] - low) * min(1.0, (q * total - before) / max(1, self.counts[place]))


class Metrics(Collector):
    """Plain numbers that only the event loop's thread changes; Prometheus's own objects are made when it asks."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.latency: dict[str, Latency] = {}
        self.events: Counter[str] = Counter()
        self.swaps = 0
        self.updates: Counter[str] = Counter()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._registry.register(ProcessCollector(registry=None))
        self._gauges: Mapping[str, float | None] = {}
        self._model: str | None = None

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self.requests[method, route, status] += 1
        latency = self.latency.get(route)
        if latency is None:
            latency = self.latency[route] = Latency()
        latency.add(seconds)

    @property
    def n_requests(self) -> int:
        return sum(self.requests.values())

    @property
    def n_errors(self) -> int:
        return sum(n for (_, _, status), n in self.requests.items() if status >= 500)

    def text(self, model: str | None, gauges: Mapping[str, float | None]) -> bytes:
        """In Prometheus's format, together with numbers that others hold."""
        self._model, self._gauges = model, gauges
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("fairstream_requests", "Requests.", labels=("method", "route", "status"))
        for (method, route, status), n in self.requests.items():
            requests.add_metric((method, route, str(status)), n)
        yield requests
        seconds = HistogramMetricFamily("fairstream_request_seconds", "How long requests took.", labels=("route",))
        bounds = [*map(str, BUCKETS), "+Inf"]
        for route, latency in self.latency.items():
            within = list(zip(bounds, map(float, accumulate(latency.counts)), strict=True))
            seconds.add_metric((route,), within, latency.seconds)
        yield seconds
        for name, help_text, label, counts in (
            ("fairstream_events", "Events that came in over HTTP.", "outcome", self.events),
            ("fairstream_updates", "Updates that this service has started.", "outcome", self.updates),
        ):
            family = CounterMetricFamily(name, help_text, labels=(label,))
            for outcome, n in counts.items():
                family.add_metric((outcome,), n)
            yield family
        for name, value in self._gauges.items():
            if value is not None:
                yield GaugeMetricFamily(f"fairstream_{name}", name.replace("_", " ") + ".", value=value)
        if self._model is not None:
            yield InfoMetricFamily("fairstream_model", "The model that answers.", value={"id": self._model})
