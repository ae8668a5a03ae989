"""Queries of dashboards and alerts against the table of metrics."""

import re
from math import prod

import pytest

from docs.promql import QueryError, labels_of, legend_of, metrics_of, of_herd
from sandherd.telemetry.meters import MAX_ZERO_SERIES
from sandherd.telemetry.metrics import BY_NAME
from tests.engines.prometheus import rules

GOOD = {
    "max by (job, state) (sandherd_tasks)": {"job", "state"},
    'sum(max by (state) (sandherd_tasks{state=~"running|assigned"}))': set(),
    "sum by (type) (rate(sandherd_ingest_stored_total[$__rate_interval]))": {"type"},
    "histogram_quantile(0.9, sum by (le, runtime) (rate(sandherd_spawn_seconds_bucket[5m])))": {"runtime"},
    "topk(3, sum by (request) (rate(sandherd_requests_total[5m])))": {"request"},
    "max by (service) (process_resident_memory_bytes)": {"service"},
    "group by (job) (sandherd_ready) unless on (job) group by (job) (sandherd_ingest_stored_total)": {"job"},
    "sum without (instance) (rate(sandherd_reconnects_total[5m]))": {"job", "service"},
    "max by (job) (sandherd_ingest_gaps) / on (job) max by (job) (sandherd_ingest_lag_messages)": {"job"},
}
BAD = {
    "max(sandherd_nothing)": "no such series: sandherd_nothing",
    "up == 0": "no such series: up",
    '{job="x"}': "no such series: a selector without a name",
    "max(sandherd_spawn_seconds)": "no such series: sandherd_spawn_seconds",
    "max(sandherd_tasks_bucket)": "no such series: sandherd_tasks_bucket",
    'max(sandherd_tasks{sandbox="sbx-1"})': "sandherd_tasks has no sandbox",
    'max(sandherd_tasks{state=~"running|runing"})': "sandherd_tasks, state has no runing",
    "sum by (error_type) (rate(sandherd_attempts_total[5m]))": "sum has no error_type",
    "sum without (state) (rate(sandherd_reconnects_total[5m]))": "sum has no state",
    "max by (job) (sandherd_tasks) / on (state) max by (job) (sandherd_tasks)": "/ has no state",
    "sum(sandherd_ingest_stored_total)": "sandherd_ingest_stored_total is a counter: rate or increase",
    "sum(rate(sandherd_tasks[5m]))": "sandherd_tasks is a gauge",
    "sum by (state) (sandherd_tasks)": "take max or min",
    "avg(sandherd_ingest_lag_messages)": "take max or min",
    "histogram_quantile(0.9, sum by (runtime) (rate(sandherd_spawn_seconds_bucket[5m])))": "has no le",
    "max(sandherd_tasks": "unclosed left parenthesis",
}


@pytest.mark.parametrize("query", GOOD)
def test_declared_metric_may_be_queried(query: str) -> None:
    """A query of declared metrics is accepted, and the labels of its result are known."""
    assert labels_of(query) == GOOD[query]


@pytest.mark.parametrize("query", BAD)
def test_undeclared_or_invalid_query_is_refused(query: str) -> None:
    """The query is refused with an error that has the query and the reason."""
    with pytest.raises(QueryError, match=r".") as refused:
        labels_of(query)
    assert query in str(refused.value)
    assert BAD[query] in str(refused.value)


def test_legend_names_existing_labels() -> None:
    """A legend with a label that the result lacks is refused: Grafana would show an empty text."""
    query = "max by (state) (sandherd_tasks)"
    assert legend_of("{{state}}", query) == "{{state}}"
    with pytest.raises(QueryError, match="has no runtime"):
        legend_of("{{ runtime }}", query)


def test_each_selector_of_a_dashboard_selects_the_herd() -> None:
    """The job is added to every selector, beside its other matchers."""
    query = 'sum(rate(sandherd_requests_total{outcome="ok"}[5m])) / sum(rate(sandherd_requests_total[5m]))'
    chosen = 'sandherd_requests_total{job="$herd"'
    assert of_herd(query) == f'sum(rate({chosen},outcome="ok"}}[5m])) / sum(rate({chosen}}}[5m]))'
    assert metrics_of(query) == {"sandherd_requests_total"}


def test_metric_of_an_increase_alert_is_exposed_as_zero() -> None:
    """A metric that begins with its first count has no increase, and the alert would not fire."""
    rising = {name for rule in rules() for name in re.findall(r"increase\((\w+)", rule["expr"])}
    assert "sandherd_sandboxes_lost_total" in rising
    for name in rising:
        assert prod(len(label.values) for label in BY_NAME[name].labels) <= MAX_ZERO_SERIES, name
