"""The metrics of one process, as declared in the table."""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from sandherd.telemetry.labels import OTHER
from sandherd.telemetry.metrics import BY_NAME, Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


Key = tuple[str | tuple[str, str], ...]
"""A metric's name, and its labels."""
MAX_ZERO_SERIES: Final = 96
"""Counters with at most this many series are exposed as 0 from the start; each series of other counters, and of
histograms with labels, appears with its first count."""


class Meters:
    """The metrics of one process. A name or label that is not in the table raises `KeyError`.

    A label's value that is not in the table is counted as `other`, so that no id becomes a label, and no service fails.
    """

    def __init__(self, registry: "CollectorRegistry") -> None:
        self._registry = registry
        self._meters: dict[str, Any] = {}
        self._series: dict[Key, Any] = {}

    def expose(self, metrics: Iterable[Metric]) -> None:
        """Expose these metrics as 0, so that the first count is visible as an increase."""
        for metric in metrics:
            if metric.kind is MetricKind.HISTOGRAM and not metric.labels:
                self._series_of(metric.name, {})
            if (
                metric.kind is MetricKind.COUNTER
                and prod(len(label.values) for label in metric.labels) <= MAX_ZERO_SERIES
            ):
                names = [label.name for label in metric.labels]
                for values in product(*(sorted(label.values) for label in metric.labels)):
                    self.count(metric.name, 0, **dict(zip(names, values, strict=True)))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._series_of(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._series_of(name, labels).set(value)

    def replace(self, name: str, series: Iterable[tuple[dict[str, str], float]]) -> None:
        """Set a gauge to these series only: those that it had before are no longer exposed."""
        self.hide(name)
        for labels, value in series:
            self.set(name, value, **labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        self._series_of(name, labels).observe(value)

    def observe_all(self, name: str, values: Collection[float], **labels: str) -> None:
        """Add many observations to a histogram, at a fraction of the cost of one call for each.

        The library has no such function: each of its observations takes two locks and passes all buckets.
        """
        series = self._series_of(name, labels)
        ordered = sorted(values)
        counted = 0
        for bound, bucket in zip(series._upper_bounds, series._buckets, strict=True):  # noqa: SLF001  # as above
            total = bisect_right(ordered, bound)
            if total > counted:
                bucket.inc(total - counted)
            counted = total
        series._sum.inc(sum(values))  # noqa: SLF001  # as above

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Set a function that returns a gauge's value at each scrape."""
        self._series_of(name, labels).set_function(read)

    def hide(self, *names: str) -> None:
        """Stop exposing these metrics until they are set again, because another replica has the current values."""
        for name in names:
            meter = self._meters.pop(name, None)
            if meter is not None:
                self._registry.unregister(meter)
                self._series = {key: series for key, series in self._series.items() if key[0] != name}

    def _series_of(self, name: str, labels: dict[str, str]) -> Any:
        key: Key = (name, *labels.items())
        return self._series.get(key) or self._find_series(name, labels, key)

    def _find_series(self, name: str, labels: dict[str, str], key: Key) -> Any:
        row = BY_NAME[name]
        meter = self._meters.get(row.name) or self._make(row)
        if not row.labels and not labels:
            self._series[key] = meter
            return meter
        if len(labels) != len(row.labels):
            raise KeyError(f"{row.name} has the labels {[label.name for label in row.labels]}, not {list(labels)}")
        known = [labels[label.name] if label.admits(labels[label.name]) else OTHER for label in row.labels]
        series = meter.labels(*known)
        if OTHER not in known:
            # Cached for known values only: with arbitrary values the cache would grow without limit.
            self._series[key] = series
        return series

    def _make(self, row: Metric) -> Any:
        from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

        # Otherwise each series has a second one that is not in the table: its creation time.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type for it
        names = [label.name for label in row.labels]
        if row.kind is MetricKind.HISTOGRAM:
            meter: Any = Histogram(row.name, row.meaning, names, registry=self._registry, buckets=row.buckets)
        else:
            kind = Counter if row.kind is MetricKind.COUNTER else Gauge
            meter = kind(row.name, row.meaning, names, registry=self._registry)
        self._meters[row.name] = meter
        return meter
