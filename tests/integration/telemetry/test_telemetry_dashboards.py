"""A real Prometheus and a real Postgres of a busy herd run each query of each panel of the dashboards."""

import re
from typing import Any, Final

import asyncpg
import pytest

from docs.promql import metrics_of
from sandherd.stack.home import Home, read_record
from tests.engines.prometheus import rules
from tests.integration.telemetry.conftest import HERD, ROOT, Watched
from tests.integration.telemetry.grafana import PanelQuery, boards, of_postgres, of_prometheus, queries_of

READER: Final = ROOT / "deploy" / "grafana" / "reader.sql"
FAULTS: Final = {
    "sandherd_queue_age_seconds": "SandherdTasksWait",
    "sandherd_branch_steps_total": "SandherdPushesRefused",
    "sandherd_git_proxy_refusals_total": "SandherdGitProxyRefuses",
    "sandherd_sandboxes_lost_total": "SandherdSandboxesLost",
    "sandherd_orphans_total": "SandherdOrphansNotRemoved",
    "sandherd_sandboxes_kept": "SandherdSandboxesQuarantined",
    "sandherd_ingest_oldest_seconds": "SandherdIngestBehind",
    "sandherd_ingest_gaps": "SandherdEventsMissing",
    "sandherd_spool_events": "SandherdSpoolsGrow",
    "sandherd_subscription_lag_messages": "SandherdSubscriptionBehind",
    "sandherd_monitor_lag_messages": "SandherdMonitorBehind",
    "sandherd_consumer_pending": "SandherdConsumerStuck",
    "sandherd_consumer_redelivered": "SandherdMessagesRedelivered",
    "sandherd_reconnects_total": "SandherdReconnecting",
    "sandherd_permission_violations_total": "SandherdPermissionsMissing",
    "sandherd_exports_total": "SandherdTelemetryLost",
    "sandherd_budget_entries_unreadable": "SandherdBudgetUnreadable",
    "sandherd_webhook_events_dropped_total": "SandherdWebhookEventsDropped",
}
"""Metrics that are 0 without a fault, with their alerts, whose tests simulate the fault."""
IDLE: Final = {
    "sandherd_ingest_lag_messages": "what is said is stored before somebody looks",
    "sandherd_consumer_unacknowledged": "what is delivered is acknowledged before somebody looks",
    "sandherd_spool_deepest_events": "the broker takes what is said at once",
    "sandherd_calls_in_flight": "the agent that goes on calls nothing",
    "sandherd_ingest_duplicates_total": "nothing is delivered twice where nothing is killed",
    "sandherd_late_events_total": "no sandbox is given up while it speaks",
    "sandherd_findings_total": "nothing is dead, stuck or idle",
    "sandherd_warm_claims_total": "no pool is set",
    "sandherd_approvals_total": "an agent that is no product of somebody's asks for no leave",
    "sandherd_room_given_bytes_total": "no stream is nearly full",
    "sandherd_spans_spared_total": "there are fewer calls than would be spared",
    "sandherd_history_held_days": "no hold is set, and no day is due",
    "sandherd_history_days_dropped_total": "no day is old enough",
    "sandherd_history_days_reduced_total": "no day is old enough",
    "sandherd_artifacts_over_limit": "no project has a limit",
    "sandherd_pull_requests": "no task of this herd has a repository",
    "sandherd_rules_disabled_total": "no rule of the monitor fails",
    "sandherd_budgets_exceeded": "this herd has no budgets",
    "sandherd_budget_crossings_total": "this herd has no budgets",
    "sandherd_budget_stops_total": "this herd has no budgets",
    "sandherd_conductor_findings": "no two sandboxes edit one file",
    "sandherd_conductor_messages_total": "no two sandboxes edit one file",
    "sandherd_conductor_comparisons_total": "no two sandboxes edit one file",
    "sandherd_gateway_requests_total": "the HTTP API is not used",
    "sandherd_gateway_streams": "the HTTP API is not used",
    "sandherd_gateway_streams_dropped_total": "the HTTP API is not used",
    "sandherd_outage_sandboxes": "no provider fails",
    "sandherd_webhook_deliveries_total": "this herd has no webhooks",
    "sandherd_webhook_oldest_seconds": "this herd has no webhooks",
}
"""Metrics that are 0 in this herd though nothing is wrong, with the reason. Their panels show 0."""

ABSENT: Final = {
    "sandherd_history_unarchived_days": "the history has no archive",
    "sandherd_forge_requests_remaining": "its series are those of the forges that were asked",
    "sandherd_conductor_published_total": "the conductor has published nothing",
    "sandherd_gateway_request_seconds": "the HTTP API is not used",
    "sandherd_gateway_event_delay_seconds": "the HTTP API is not used",
    "sandherd_webhook_delay_seconds": "this herd has no webhooks",
}
"""Metrics without a series in this herd, with the reason."""


def lacking(found: dict[PanelQuery, list[float]]) -> list[PanelQuery]:
    """The queries without data, or with only 0 although their subject has happened."""
    shown = {one: values for one, values in found.items() if not metrics_of(one.text) <= ABSENT.keys()}
    return [one for one, values in shown.items() if not values or not (any(values) or is_nought(one))]


def is_nought(one: PanelQuery) -> bool:
    return metrics_of(one.text) <= FAULTS.keys() | IDLE.keys()


def test_every_panel_of_prometheus_shows_data(watched: Watched) -> None:
    """Each query of each panel finds numeric series, greater than 0 except for those listed above."""
    found: dict[PanelQuery, list[float]] = {one: [] for one in queries_of("expr")}

    def all_there() -> bool:
        found.update({one: watched.prometheus.numbers(of_prometheus(one.text, HERD)) for one in lacking(found)})
        return not lacking(found)

    watched.prometheus.until(all_there, lambda: "\n".join(f"{one}: {one.text}: {found[one]}" for one in lacking(found)))
    assert len(found) > 80


def test_metric_without_data_has_an_alert() -> None:
    """Each metric that is 0 without a fault is in an alert; the tests of the rules simulate the fault."""
    read: dict[str, set[str]] = {}
    for rule in rules():
        read.setdefault(rule["alert"], set()).update(metrics_of(rule["expr"]))
    for metric, alert in FAULTS.items():
        assert metric in read[alert]
    assert FAULTS.keys() | IDLE.keys() | ABSENT.keys() <= {
        metric for one in queries_of("expr") for metric in metrics_of(one.text)
    }


def test_dashboard_shows_its_own_herd_only(watched: Watched) -> None:
    """With another herd selected no panel has data."""
    for one in queries_of("expr"):
        assert watched.prometheus.find(of_prometheus(one.text, "another")) == [], str(one)


def test_herd_can_be_chosen(watched: Watched) -> None:
    """The variable at the top of each dashboard is a query that finds the herd."""
    for name, board in boards().items():
        for variable in board["templating"]["list"]:
            if variable["name"] == "herd":
                match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert match, name
                assert watched.prometheus.ask(f"label/{match[2]}/values", **{"match[]": match[1]}) == [HERD]


async def test_every_panel_of_a_sandbox_shows_data(watched: Watched) -> None:
    """Each statement runs as the reading role, with rows of the sandbox that got a message."""
    owner = await asyncpg.connect(database_url(watched))
    await owner.execute(READER.read_text())
    await owner.execute(READER.read_text())
    # No program may request an approval by itself, so a driver's request is inserted.
    await owner.execute(
        "insert into approvals (project, sandbox, approval, state, state_sequence, state_at, tool, requested_at) "
        "values ('default', $1, 'leave-1', 'pending', 1, now(), 'Bash', now())",
        watched.sandbox,
    )
    await owner.close()
    reader = await asyncpg.connect(database_url(watched).replace("postgres@", "sandherd_reader@"))
    try:
        chosen = {"project": "default", "sandbox": watched.sandbox}
        for variable in boards()["sandbox"]["templating"]["list"]:
            if variable["type"] == "query":
                rows = await reader.fetch(of_postgres(variable["query"], chosen))
                assert chosen[variable["name"]] in {row[0] for row in rows}
        for one in queries_of("rawSql"):
            rows = await reader.fetch(of_postgres(one.text, chosen))
            assert rows, str(one)
            assert any(value is not None for row in rows for value in row.values()), str(one)
            nothing = await reader.fetch(of_postgres(one.text, chosen | {"sandbox": "it's another's"}))
            assert len(nothing) <= 1, str(one)
        for statement in ("delete from events", "select * from schema_migrations", "create table mine (a int)"):
            await refused(reader, statement)
    finally:
        await reader.close()


async def refused(reader: Any, statement: str) -> None:
    with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)):
        await reader.execute(statement)


def database_url(watched: Watched) -> str:
    record = read_record(Home(watched.home))
    assert record is not None
    assert record.database_url is not None
    return record.database_url
