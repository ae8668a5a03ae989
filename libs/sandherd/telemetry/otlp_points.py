"""Metrics in the format of OTLP, read from the Prometheus registry, so that both show the same values."""

import time
from collections.abc import Iterable
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.samples import Sample

from sandherd.telemetry.metrics import BORROWED, BY_NAME

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
Series = tuple[tuple[str, str], ...]


class Points:
    """Reads the metric points of one registry."""

    def __init__(self, registry: CollectorRegistry, resource: Resource) -> None:
        self._registry = registry
        self._resource = resource
        self._started_at = time.time_ns()

    def read(self) -> tuple[MetricsData, int]:
        """The current values of all points, and how many there are."""
        now = time.time_ns()
        metrics = [metric for family in self._registry.collect() if (metric := self._metric(family, now))]
        scope = ScopeMetrics(InstrumentationScope("sandherd"), metrics, "")
        count = sum(len(metric.data.data_points) for metric in metrics)
        return MetricsData([ResourceMetrics(self._resource, [scope], "")]), count

    def _metric(self, family: Family, now: int) -> Metric | None:
        data: Sum | Gauge | Histogram
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if family.type == "histogram":
            data = Histogram(self._histogram(family.samples, now), _CUMULATIVE)
        elif family.type == "counter":
            counted = [sample for sample in family.samples if sample.name == name]
            data = Sum(self._numbers(counted, now), _CUMULATIVE, is_monotonic=True)
        else:
            data = Gauge(self._numbers(family.samples, now))
        return Metric(name, family.documentation, _unit(name), data) if data.data_points else None

    def _numbers(self, samples: Iterable[Sample], now: int) -> list[NumberDataPoint]:
        return [NumberDataPoint(dict(sample.labels), self._started_at, now, sample.value) for sample in samples]

    def _histogram(self, samples: Iterable[Sample], now: int) -> list[HistogramDataPoint]:
        buckets_by_series: dict[Series, list[tuple[float, float]]] = {}
        sums: dict[Series, float] = {}
        for sample in samples:
            labels = {name: value for name, value in sample.labels.items() if name != "le"}
            series = tuple(sorted(labels.items()))
            if sample.name.endswith("_bucket"):
                buckets_by_series.setdefault(series, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_sum"):
                sums[series] = sample.value
        return [
            self._point(series, buckets, sums.get(series, 0.0), now) for series, buckets in buckets_by_series.items()
        ]

    def _point(self, series: Series, buckets: list[tuple[float, float]], total: float, now: int) -> HistogramDataPoint:
        """A point with separate buckets, because Prometheus' buckets include all smaller values, and OTLP's do not."""
        counts = [int(count) for _, count in buckets]
        separate_counts = [count - before for count, before in zip(counts, [0, *counts[:-1]], strict=True)]
        bounds = [bound for bound, _ in buckets[:-1]]
        return HistogramDataPoint(
            dict(series),
            self._started_at,
            now,
            count=counts[-1],
            sum=total,
            bucket_counts=separate_counts,
            explicit_bounds=bounds,
            min=None,  # type: ignore[arg-type]  # not known here, and optional on the wire
            max=None,  # type: ignore[arg-type]  # as above
        )


def _unit(name: str) -> str:
    """The unit from the tables, in UCUM."""
    row = BY_NAME.get(name)
    return BORROWED.get(name, "") if row is None else row.unit
