"""The metrics of one process, as the table says."""

from collections.abc import Callable, Iterable
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, Final

from sandherd.telemetry.labels import OTHER
from sandherd.telemetry.metrics import BY_NAME, Kind, Metric

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


Key = tuple[str | tuple[str, str], ...]
"""A metric's name, and its labels."""
FEW: Final = 12
"""Counters with at most so many series are shown as 0 from the start; others begin with their first count each, as
histograms with labels do."""


class Meters:
    """The metrics of one process. A name or label that is not in the table raises `KeyError`.

    A label's value that is not in the table is counted as `other`: telemetry breaks no service, and no id gets in.
    """

    def __init__(self, registry: "CollectorRegistry") -> None:
        self._registry = registry
        self._made: dict[str, Any] = {}
        self._series: dict[Key, Any] = {}

    def begin(self, metrics: Iterable[Metric]) -> None:
        """Show what these count as 0, so that the first time is a rise that whoever looks can see."""
        for metric in metrics:
            if metric.kind is Kind.HISTOGRAM and not metric.labels:
                self._of(metric.name, {})
            if metric.kind is Kind.COUNTER and prod(len(label.values) for label in metric.labels) <= FEW:
                names = [label.name for label in metric.labels]
                for values in product(*(sorted(label.values) for label in metric.labels)):
                    self.count(metric.name, 0, **dict(zip(names, values, strict=True)))

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._of(name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._of(name, labels).set(value)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        self._of(name, labels).observe(value)

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """A gauge that is read whenever somebody looks."""
        self._of(name, labels).set_function(read)

    def forget(self, *names: str) -> None:
        """Show these no more, until they are set again: another replica knows better."""
        for name in names:
            made = self._made.pop(name, None)
            if made is not None:
                self._registry.unregister(made)
                self._series = {key: series for key, series in self._series.items() if key[0] != name}

    def _of(self, name: str, labels: dict[str, str]) -> Any:
        key: Key = (name, *labels.items())
        return self._series.get(key) or self._find(name, labels, key)

    def _find(self, name: str, labels: dict[str, str], key: Key) -> Any:
        row = BY_NAME[name]
        meter = self._made.get(row.name) or self._make(row)
        if not row.labels and not labels:
            self._series[key] = meter
            return meter
        if len(labels) != len(row.labels):
            raise KeyError(f"{row.name} has the labels {[label.name for label in row.labels]}, not {list(labels)}")
        known = [labels[label.name] if labels[label.name] in label.values else OTHER for label in row.labels]
        series = meter.labels(*known)
        if OTHER not in known:
            # Kept for known values only: keys that are strangers' words would grow without end.
            self._series[key] = series
        return series

    def _make(self, row: Metric) -> Any:
        from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

        # Else there is one more of each series, which the table does not have: when it was made.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no type for it
        names = [label.name for label in row.labels]
        if row.kind is Kind.HISTOGRAM:
            meter: Any = Histogram(row.name, row.says, names, registry=self._registry, buckets=row.buckets)
        else:
            kind = Counter if row.kind is Kind.COUNTER else Gauge
            meter = kind(row.name, row.says, names, registry=self._registry)
        self._made[row.name] = meter
        return meter
