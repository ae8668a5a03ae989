"""The table of metrics: complete, bounded, and all that a service can show."""

import re

import pytest
from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families

from event_ingest.stream_purge import LEASE as ROOM_LEASE
from message_relay.main import LEASE as DELIVERY_LEASE
from message_relay.webhooks.partition import PARTITIONS
from monitor.budgets.component import LEASE as BUDGETS_LEASE
from monitor.main import CONDUCTOR_LEASE
from monitor.partition_plan import LAYOUT_LEASE as WATCH_LEASE
from sandherd.telemetry import labels
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.metrics import BORROWED, METRICS, Metric, MetricKind
from spawner.main import SCHEDULER_LEASE, SWEEP_LEASE
from spawner.pool.warm_record import WarmState
from spawner.repositories.branch_transitions import DONE, outcome_of
from spawner.repositories.git import GitFault
from tests.unit.monitor.rule_sets import GUARDIAN, HOUSEKEEPING

MOST_VALUES = 150
"""Of one label; its series are that many for each of the other's. The types of events are the longest list."""
MOST_SERIES = 300


def fill(meters: Meters, metric: Metric, values: dict[str, str]) -> None:
    if metric.kind is MetricKind.COUNTER:
        meters.count(metric.name, 1, **values)
    elif metric.kind is MetricKind.GAUGE:
        meters.set(metric.name, 1, **values)
    else:
        meters.observe(metric.name, 1, **values)


def test_observations_together_count_as_one_by_one() -> None:
    """Each value is counted in its bucket, also values on the limit of a bucket and above the last one."""
    values = [0.0, 0.1, 0.25, 0.2500001, 3.0, 1800.0, 1e9, -1.0, 3.0]
    together, single = CollectorRegistry(), CollectorRegistry()
    Meters(together).observe_all("sandherd_tool_call_seconds", values)
    meters = Meters(single)
    for value in values:
        meters.observe("sandherd_tool_call_seconds", value)
    assert generate_latest(together) == generate_latest(single)


def test_labels_are_small_enumerations() -> None:
    """No label has more than 150 values, and no metric more than a few hundred series."""
    for metric in METRICS:
        series = 1
        for label in metric.labels:
            if label.named:  # the code that sets it limits how many there are
                assert metric.kind is MetricKind.GAUGE
                continue
            assert 0 < len(label.values) <= MOST_VALUES, f"{metric.name} {label.name}"
            series *= len(label.values) + 1
        assert series <= MOST_SERIES * (6 if metric.kind is MetricKind.COUNTER else 1), (
            f"{metric.name}: {series} series"
        )


def test_units_are_of_ucum() -> None:
    """Units are seconds, bytes, counted things in braces, or `1` for a metric named as a ratio."""
    units = {metric.name: metric.unit for metric in METRICS} | dict(BORROWED)
    assert [name for name, unit in units.items() if not re.fullmatch(r"s|By|1|(10\*-6\.)?\{[a-zA-Z_]+\}", unit)] == []
    assert [name for name, unit in units.items() if (unit == "1") != name.endswith("_ratio")] == []
    assert [name for name, unit in units.items() if (unit == "s") != ("_seconds" in name)] == []
    assert [name for name, unit in units.items() if (unit == "By") != ("_bytes" in name)] == []


def test_no_id_becomes_a_label() -> None:
    """A value outside the enumeration counts as `other`: a hundred unknown ids make one series."""
    for metric in (metric for metric in METRICS if metric.labels and not any(one.named for one in metric.labels)):
        registry = CollectorRegistry()
        meters = Meters(registry)
        for number in range(100):
            fill(meters, metric, {label.name: f"sbx-{number}" for label in metric.labels})
        (family,) = registry.collect()
        shown = {tuple(value for name, value in sample.labels.items() if name != "le") for sample in family.samples}
        assert shown == {("other",) * len(metric.labels)}
        assert len(meters._series) == 0


def test_only_declared_metrics_are_exposed() -> None:
    """No series of a library is exposed that would duplicate a declared metric."""
    for metric in METRICS:
        registry = CollectorRegistry()
        fill(Meters(registry), metric, {label.name: min(label.values, default="a-name") for label in metric.labels})
        families = text_string_to_metric_families(generate_latest(registry).decode())
        names = {sample.name for family in families for sample in family.samples}
        parts = {"_bucket", "_sum", "_count"} if metric.kind is MetricKind.HISTOGRAM else {""}
        assert names == {metric.name + part for part in parts}


def test_undeclared_metric_raises() -> None:
    """An undeclared name or label name raises KeyError."""
    meters = Meters(CollectorRegistry())
    with pytest.raises(KeyError):
        meters.count("sandherd_surprises_total")
    with pytest.raises(KeyError):
        meters.count("sandherd_dead_letters_total", consumer="event-ingest")
    with pytest.raises(KeyError):
        meters.set("sandherd_connected", 1, host="here")
    with pytest.raises(KeyError):
        meters.count("sandherd_dead_letters_total", consumer="event-ingest", reason="none")


def test_hidden_gauge_has_no_series() -> None:
    """After `hide` there is no such series, and it may be set again."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    meters.set("sandherd_tasks", 3, state="pending")
    meters.hide("sandherd_tasks", "sandherd_sandboxes")
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) is None
    meters.set("sandherd_tasks", 2, state="pending")
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) == 2


def test_metric_with_few_series_is_exposed_as_zero() -> None:
    """Its first count is then an increase. A metric with many series is only exposed after its first count."""
    registry = CollectorRegistry()
    meters = Meters(registry)
    meters.expose(METRICS)
    assert registry.get_sample_value("sandherd_reconnects_total") == 0
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 0
    assert registry.get_sample_value("sandherd_turn_seconds_count") == 0
    assert registry.get_sample_value("sandherd_ingest_stored_total", {"type": "agent.message"}) is None
    assert registry.get_sample_value("sandherd_task_seconds_count", {"state": "failed"}) is None
    assert registry.get_sample_value("sandherd_tasks", {"state": "pending"}) is None
    meters.count("sandherd_attempts_total", outcome="failed")
    meters.expose(METRICS)
    assert registry.get_sample_value("sandherd_attempts_total", {"outcome": "failed"}) == 1


def test_values_owned_by_a_service_equal_the_labels() -> None:
    """Rules, leases and states of the pool are repeated in the labels, because libs import no service."""
    assert set(labels.FINDING.values) == set(HOUSEKEEPING)
    assert set(labels.STEERING.values) == set(GUARDIAN)
    assert set(labels.WARM_STATES) == {state.value for state in WarmState}
    assert set(labels.BRANCH_OUTCOMES) == {DONE, *map(outcome_of, GitFault)}
    leases = {SCHEDULER_LEASE, SWEEP_LEASE, DELIVERY_LEASE, WATCH_LEASE, CONDUCTOR_LEASE, BUDGETS_LEASE, ROOM_LEASE}
    webhooks = {f"message-relay.webhooks-{number}" for number in range(PARTITIONS)}
    assert set(labels.LEASES) == leases | webhooks


def test_units_are_in_the_names() -> None:
    """The conventions of Prometheus apply: the base unit, and `_total` for counters."""
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        base = metric.name.removesuffix("_total")
        assert base.endswith("_seconds") == (metric.unit == "s"), metric.name
        assert base.endswith("_bytes") == (metric.unit == "By"), metric.name


def test_inherited_metrics_are_declared() -> None:
    """The page includes the process metrics of prometheus-client, too."""
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    shown = {sample.name for family in registry.collect() for sample in family.samples}
    assert shown == set(BORROWED)
