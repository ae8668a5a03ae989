"""Every metric, once: its name, kind, unit, meaning and labels. A label is a small enumeration, never an id."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics import MetricWrapperBase


class Kind(StrEnum):
    """How a metric moves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    unit: str
    says: str
    labels: tuple[str, ...] = ()
    buckets: Sequence[float] = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

METRICS: Final[tuple[Metric, ...]] = (
    # every service
    Metric("sandherd_deliveries_total", _C, "1", "Messages handled, by what came of them.", ("consumer", "outcome")),
    Metric("sandherd_handler_seconds", _H, "s", "How long a handler took.", ("consumer",)),
    Metric("sandherd_requests_total", _C, "1", "Requests answered, by what came of them.", ("request", "outcome")),
    Metric("sandherd_request_seconds", _H, "s", "How long an answer took.", ("request",)),
    Metric("sandherd_dead_letters_total", _C, "1", "Messages put into DEAD.", ("consumer", "code")),
    Metric("sandherd_reconnects_total", _C, "1", "Times the broker connection came back."),
    Metric("sandherd_permission_violations_total", _C, "1", "Times the broker refused a subject to this service."),
    Metric("sandherd_lease_held", _G, "1", "1 while this replica holds the lease.", ("lease",)),
    Metric("sandherd_stream_fill_ratio", _G, "1", "How full a stream is: 1 is full.", ("stream",)),
    Metric("sandherd_ready", _G, "1", "1 while every part that readiness rests on is well."),
    # spawner
    Metric("sandherd_tasks", _G, "1", "Tasks in the live bucket, by state.", ("state",)),
    Metric("sandherd_sandboxes", _G, "1", "Sandboxes in the live bucket, by state.", ("state",)),
    Metric("sandherd_sandboxes_kept", _G, "1", "Ended sandboxes, put aside with something that could not be said."),
    Metric("sandherd_spawn_seconds", _H, "s", "From request to the worker's first word.", ("runtime",)),
    Metric("sandherd_transitions_refused_total", _C, "1", "Changes of state that the table does not allow.", ("kind",)),
    Metric("sandherd_late_events_total", _C, "1", "Agent events that came too late to change anything.", ("reason",)),
    Metric("sandherd_queue_age_seconds", _G, "s", "How long the task has waited that has waited longest for its turn."),
    Metric("sandherd_schedule_seconds", _H, "s", "How long it took to choose the next task."),
    Metric("sandherd_task_wait_seconds", _H, "s", "From when a task could begin to its assignment.", ("priority",)),
    Metric("sandherd_attempts_total", _C, "1", "Attempts that have ended, by what came of them.", ("outcome",)),
    Metric("sandherd_retries_total", _C, "1", "Attempts that are followed by another, by why.", ("error_type",)),
    Metric("sandherd_refusals_total", _C, "1", "Commands that were refused for good, by command.", ("command",)),
    Metric("sandherd_warm_sandboxes", _G, "1", "Sandboxes that are started beforehand, by state.", ("state",)),
    Metric("sandherd_warm_claims_total", _C, "1", "Claims on them: claimed, empty, or lost to another.", ("outcome",)),
    Metric("sandherd_orphans_total", _C, "1", "What no record wanted: found, removed.", ("outcome",)),
    Metric("sandherd_sandboxes_lost_total", _C, "1", "Live sandboxes that their runtime no longer had.", ("runtime",)),
    Metric("sandherd_execs_total", _C, "1", "Commands asked for: started, refused, unanswered.", ("outcome",)),
    Metric("sandherd_uploaded_bytes_total", _C, "By", "Bytes put into sandboxes."),
    Metric("sandherd_downloaded_bytes_total", _C, "By", "Bytes taken out of sandboxes."),
    # event-ingest
    Metric("sandherd_ingest_stored_total", _C, "1", "Events stored."),
    Metric("sandherd_ingest_duplicates_total", _C, "1", "Events that were stored already, and were not stored again."),
    Metric("sandherd_ingest_lag_messages", _G, "1", "Events in the stream that are not stored yet."),
    Metric("sandherd_ingest_lag_seconds", _H, "s", "From the broker's time of an event to its commit."),
    Metric("sandherd_room_given_bytes_total", _C, "By", "Bytes taken out of streams before they refuse.", ("stream",)),
    # message-relay
    Metric("sandherd_messages_total", _C, "1", "Messages to agents, by state reached.", ("state",)),
    Metric("sandherd_approvals_total", _C, "1", "Requests for a person's leave, by state reached.", ("state",)),
    Metric("sandherd_message_delivery_seconds", _H, "s", "From the command to the worker's receipt."),
    # monitor
    Metric("sandherd_watched_sandboxes", _G, "1", "Sandboxes under watch."),
    Metric("sandherd_findings_total", _C, "1", "What the rules found.", ("rule",)),
    Metric("sandherd_interventions_total", _C, "1", "Steerings, by what came of them.", ("rule", "outcome")),
    Metric("sandherd_heartbeat_age_seconds", _G, "s", "Age of the oldest last word of a live sandbox."),
)

BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Meters:
    """The metrics of one process. A name or label that is not in the table raises `KeyError` or `ValueError`."""

    def __init__(self, registry: "CollectorRegistry") -> None:
        self._registry = registry
        self._made: dict[str, MetricWrapperBase] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter."""
        self._labelled(name, labels).inc(amount)  # type: ignore[attr-defined]  # a counter, by the table

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._labelled(name, labels).set(value)  # type: ignore[attr-defined]  # a gauge, by the table

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add an observation to a histogram."""
        self._labelled(name, labels).observe(value)  # type: ignore[attr-defined]  # a histogram, by the table

    def _labelled(self, name: str, labels: dict[str, str]) -> "MetricWrapperBase":
        meter = self._made.get(name) or self._make(name)
        return meter.labels(**labels) if labels else meter

    def _make(self, name: str) -> "MetricWrapperBase":
        from prometheus_client import Counter, Gauge, Histogram

        row = BY_NAME[name]
        meter: MetricWrapperBase
        if row.kind is Kind.HISTOGRAM:
            meter = Histogram(name, row.says, row.labels, registry=self._registry, buckets=row.buckets)
        else:
            meter = (Counter if row.kind is Kind.COUNTER else Gauge)(
                name, row.says, row.labels, registry=self._registry
            )
        self._made[name] = meter
        return meter
