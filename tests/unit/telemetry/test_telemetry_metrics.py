"""The table of metrics: complete, bounded, and all that a service can show."""

import pytest
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from event_ingest.clearing import LEASE as ROOM_LEASE
from message_relay.main import LEASE as DELIVERY_LEASE
from monitor.guardian import LOOP
from monitor.main import LEASE as WATCH_LEASE
from monitor.rules import Rule
from sandherd.telemetry import labels
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.metrics import BORROWED, METRICS, Kind, Metric
from spawner.main import SCHEDULER_LEASE, SWEEP_LEASE
from spawner.pool.record import WarmState

MOST_VALUES = 100
"""Of one label; its series are that many for each of the other's."""
MOST_SERIES = 250


def fill(meters: Meters, metric: Metric, values: dict[str, str]) -> None:
    if metric.kind is Kind.COUNTER:
        meters.count(metric.name, 1, **values)
    elif metric.kind is Kind.GAUGE:
        meters.set(metric.name, 1, **values)
    else:
        meters.observe(metric.name, 1, **values)


def test_labels_are_small_enumerations() -> None:
    """No label has more than a hundred values, and no metric more than a few hundred series."""
    for metric in METRICS:
        series = 1
        for label in metric.labels:
            assert 0 < len(label.values) <= MOST_VALUES, f"{metric.name} {label.name}"
            series *= len(label.values) + 1
        assert series <= MOST_SERIES * (4 if metric.kind is Kind.COUNTER else 1), f"{metric.name}: {series} series"


def test_no_id_becomes_a_label() -> None:
    """What is in no enumeration is counted as `other`: a hundred strange ids make one series."""
    for metric in (metric for metric in METRICS if metric.labels):
        registry = CollectorRegistry()
        meters = Meters(registry)
        for number in range(100):
            fill(meters, metric, {label.name: f"sbx-{number}" for label in metric.labels})
        (family,) = registry.collect()
        shown = {tuple(value for name, value in sample.labels.items() if name != "le") for sample in family.samples}
        assert shown == {("other",) * len(metric.labels)}
        assert len(meters._series) == 0


def test_nothing_is_shown_beside_what_is_declared() -> None:
    """No series that a library adds of its own accord: each would be there once more."""
    for metric in METRICS:
        registry = CollectorRegistry()
        fill(Meters(registry), metric, {label.name: min(label.values) for label in metric.labels})
        families = text_string_to_metric_families(generate_latest(registry).decode())
        names = {sample.name for family in families for sample in family.samples}
        parts = {"_bucket", "_sum", "_count"} if metric.kind is Kind.HISTOGRAM else {""}
        assert names == {metric.name + part for part in parts}


def test_what_is_not_in_the_table_is_a_fault_of_ours() -> None:
    """A name, or a label's name, that is not declared raises."""
    meters = Meters(CollectorRegistry())
    with pytest.raises(KeyError):
        meters.count("sandherd_surprises_total")
    with pytest.raises(KeyError):
        meters.count("sandherd_dead_letters_total", consumer="event-ingest")
    with pytest.raises(KeyError):
        meters.set("sandherd_connected", 1, host="here")
    with pytest.raises(KeyError):
        meters.count("sandherd_dead_letters_total", consumer="event-ingest", reason="none")


def test_a_gauge_that_another_knows_better_is_shown_no_more() -> None:
    """After `forget` there is no such series, and it may be set again."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    meters.set("sandherd_tasks", 3, state="pending")
    meters.forget("sandherd_tasks", "sandherd_sandboxes")
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) is None
    meters.set("sandherd_tasks", 2, state="pending")
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) == 2


def test_what_has_few_series_is_shown_before_anything_is_counted() -> None:
    """As 0, so that the first time is a rise; what has many series begins with its first count."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    meters.begin(METRICS)
    assert registry.get_sample_value("sandherd_reconnects_total") == 0
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 0
    assert registry.get_sample_value("sandherd_turn_seconds_count") == 0
    assert registry.get_sample_value("sandherd_ingest_stored_total", {"type": "agent.message"}) is None
    assert registry.get_sample_value("sandherd_task_seconds_count", {"state": "failed"}) is None
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) is None
    meters.count("sandherd_attempts_total", outcome="failed")
    meters.begin(METRICS)
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 1


def test_values_that_a_service_owns_are_the_same_there() -> None:
    """Rules, leases and states of the pool are repeated in the labels, because libs know no service."""
    assert set(labels.IDLE_RULES) == {rule.value for rule in Rule}
    assert set(labels.STEERING_RULES) == {LOOP}
    assert set(labels.WARM_STATES) == {state.value for state in WarmState}
    assert set(labels.LEASES) == {SCHEDULER_LEASE, SWEEP_LEASE, DELIVERY_LEASE, WATCH_LEASE, ROOM_LEASE}


def test_units_stand_in_the_names() -> None:
    """By the conventions of Prometheus: the base unit, and `_total` for what only grows."""
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER), metric.name
        base = metric.name.removesuffix("_total")
        assert base.endswith("_seconds") == (metric.unit == "s"), metric.name
        assert base.endswith("_bytes") == (metric.unit == "By"), metric.name


def test_borrowed_metrics_are_declared() -> None:
    """What prometheus-client shows of every process stands on the page, too."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    shown = {sample.name for family in registry.collect() for sample in family.samples}
    assert shown == set(BORROWED)
