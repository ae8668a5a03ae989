"""The table of all metrics: name, kind, unit, meaning and labels. A label is a small enumeration, never an id.

Only the metrics of subscriptions and forges have labels with names that users or operators chose; their number is
limited.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandherd.telemetry import labels as of
from sandherd.telemetry.labels import Label


class MetricKind(StrEnum):
    """The kind of a metric, as in Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_USUAL: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_HOURS: Final = (1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400)
_DAYS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3600, 14_400, 86_400, 259_200)
_COUNTS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    kind: MetricKind
    unit: str
    """The unit in UCUM. For a count, it names the counted things in braces: `1` would mean a ratio to collectors."""
    meaning: str
    labels: tuple[Label, ...] = ()
    buckets: Sequence[float] = _USUAL


_C, _G, _H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

_EVERY: Final = (
    Metric("sandherd_deliveries_total", _C, "{message}", "Messages handled, by outcome.", (of.CONSUMER, of.DELIVERY)),
    Metric("sandherd_handler_seconds", _H, "s", "Time to handle a message or a batch.", (of.CONSUMER,)),
    Metric("sandherd_dead_letters_total", _C, "{message}", "Messages stored in DEAD.", (of.CONSUMER, of.CODE)),
    Metric(
        "sandherd_dead_letters_dropped_total", _C, "{message}", "Dead letters beyond the limit.", (of.CONSUMER, of.CODE)
    ),
    Metric("sandherd_deliveries_deferred_total", _C, "{message}", "Messages deferred by a rate limit.", (of.CONSUMER,)),
    Metric("sandherd_consumer_pending", _G, "{message}", "Messages of a consumer not delivered yet.", (of.CONSUMER,)),
    Metric(
        "sandherd_consumer_unacknowledged", _G, "{message}", "Messages delivered, not acknowledged yet.", (of.CONSUMER,)
    ),
    Metric(
        *("sandherd_consumer_redelivered", _G, "{message}", "Unacknowledged messages delivered more than once."),
        (of.CONSUMER,),
    ),
    Metric("sandherd_requests_total", _C, "{request}", "Requests replied to, by outcome.", (of.REQUEST, of.ANSWER)),
    Metric("sandherd_request_seconds", _H, "s", "Time to reply to a request.", (of.REQUEST,)),
    Metric("sandherd_connected", _G, "{connection}", "1 while the broker is connected."),
    Metric("sandherd_reconnects_total", _C, "{connection}", "Times the broker was reconnected."),
    Metric(
        "sandherd_permission_violations_total", _C, "{violation}", "Times the broker refused a subject to this service."
    ),
    Metric("sandherd_lease_held", _G, "{lease}", "1 while this replica holds the lease.", (of.LEASE,)),
    Metric("sandherd_stream_fill_ratio", _G, "1", "How full a stream is: 1 is full.", (of.STREAM,)),
    Metric("sandherd_stream_bytes", _G, "By", "Bytes in a stream.", (of.STREAM,)),
    Metric("sandherd_stream_messages", _G, "{message}", "Messages in a stream.", (of.STREAM,)),
    Metric(
        "sandherd_broker_store_failing",
        _G,
        "{store}",
        "1 while the broker responds but does not store what is written.",
    ),
    Metric("sandherd_ready", _G, "{service}", "1 while every part that readiness depends on is healthy."),
    Metric(
        "sandherd_http_connections_dropped_total",
        _C,
        "{connection}",
        "HTTP connections closed by a limit.",
        (of.DROPPED,),
    ),
    Metric(
        *("sandherd_exports_total", _C, "{item}", "Spans and metric points that were exported or dropped, by outcome."),
        (of.SIGNAL, of.EXPORT),
    ),
)
_SPAWNER: Final = (
    Metric("sandherd_tasks", _G, "{task}", "Tasks with a record in the broker, by state.", (of.TASK_STATE,)),
    Metric("sandherd_task_seconds", _H, "s", "From a task's submission to its end.", (of.TASK_END,), _HOURS),
    Metric(
        "sandherd_task_wait_seconds",
        _H,
        "s",
        "Time from when a task may start to its selection.",
        (of.PRIORITY,),
        _LONG,
    ),
    Metric(
        *("sandherd_queue_age_seconds", _G, "s"),
        "Time since the submission of the oldest task that is ready to begin; 0 if none.",
    ),
    Metric("sandherd_schedule_seconds", _H, "s", "Time to choose the next task."),
    Metric(
        "sandherd_schedule_due_times_total", _C, "{due_time}", "Due times of schedules, by outcome.", (of.DUE_TIME,)
    ),
    Metric("sandherd_attempts_total", _C, "{attempt}", "Attempts that have ended, by outcome.", (of.ATTEMPT,)),
    Metric(
        "sandherd_retries_total",
        _C,
        "{attempt}",
        "Failed attempts that another one follows, by error.",
        (of.ERROR_TYPE,),
    ),
    Metric("sandherd_refusals_total", _C, "{command}", "Commands rejected without a retry, by command.", (of.COMMAND,)),
    Metric(
        "sandherd_branch_steps_total",
        _C,
        "{step}",
        "Steps of branches and of tasks with a repository, by outcome.",
        (of.BRANCH_STEP, of.BRANCH_OUTCOME),
    ),
    Metric(
        "sandherd_git_proxy_refusals_total",
        _C,
        "{request}",
        "Requests of sandboxes that the git proxy refused, by reason.",
        (of.PROXY_REFUSAL,),
    ),
    Metric("sandherd_pull_requests", _G, "{pull_request}", "Open pull requests of branches.", (of.PULL_REQUEST_STATE,)),
    Metric(
        "sandherd_forge_requests_remaining",
        _G,
        "{request}",
        "Requests that a forge permits until its rate limit is reset, as of its last response.",
        (of.FORGE,),
    ),
    Metric("sandherd_mirrors", _G, "{mirror}", "Mirrors of repositories in the spawner's home."),
    Metric("sandherd_mirrors_bytes", _G, "By", "Size of all mirrors."),
    Metric("sandherd_sandboxes", _G, "{sandbox}", "Sandboxes with a record, by state.", (of.SANDBOX_STATE, of.RUNTIME)),
    Metric("sandherd_sandboxes_limit", _G, "{sandbox}", "Maximum of live sandboxes."),
    Metric("sandherd_sandbox_seconds_total", _C, "s", "Total lifetime of sandboxes.", (of.RUNTIME,)),
    Metric("sandherd_sandboxes_kept", _G, "{sandbox}", "Ended sandboxes that are retained with undelivered events."),
    Metric("sandherd_spawn_seconds", _H, "s", "From request to the worker's first event.", (of.RUNTIME,), _LONG),
    Metric(
        "sandherd_sandboxes_lost_total",
        _C,
        "{sandbox}",
        "Live sandboxes that no longer existed in their runtime.",
        (of.RUNTIME,),
    ),
    Metric(
        "sandherd_sandboxes_cut_off_total",
        _C,
        "{sandbox}",
        "Sandboxes that flooded the broker, by excess.",
        (of.EXCESS,),
    ),
    Metric(
        "sandherd_connections_closed_total", _C, "{connection}", "Users' connections closed because of their limit."
    ),
    Metric(
        "sandherd_credentials_revoked_total",
        _C,
        "{credential}",
        "Users' credentials revoked because of repeated excess, by role.",
        (of.ROLE,),
    ),
    Metric("sandherd_orphans_total", _C, "{sandbox}", "Sandboxes without a record, found or removed.", (of.ORPHAN,)),
    Metric("sandherd_disk_free_bytes", _G, "By", "Free bytes of the file system of a folder.", (of.FOLDER,)),
    Metric("sandherd_disk_free_inodes", _G, "{inode}", "Free inodes of the file system of a folder.", (of.FOLDER,)),
    Metric("sandherd_warm_sandboxes", _G, "{sandbox}", "Sandboxes that are started in advance, by state.", (of.WARM,)),
    Metric("sandherd_warm_claims_total", _C, "{claim}", "Claims on warm sandboxes, by outcome.", (of.CLAIM,)),
    Metric(
        "sandherd_transitions_refused_total", _C, "{transition}", "Transitions that are not allowed.", (of.STATE_KIND,)
    ),
    Metric("sandherd_late_events_total", _C, "{event}", "Agent events too late to change anything.", (of.LATE_REASON,)),
    Metric("sandherd_execs_total", _C, "{request}", "Requests to run a command, by outcome.", (of.EXEC,)),
    Metric("sandherd_uploaded_bytes_total", _C, "By", "Bytes uploaded to sandboxes."),
    Metric("sandherd_downloaded_bytes_total", _C, "By", "Bytes downloaded from sandboxes."),
)
_INGEST: Final = (
    Metric("sandherd_ingest_received_total", _C, "{event}", "Events delivered by the broker, including redeliveries."),
    Metric("sandherd_ingest_stored_total", _C, "{event}", "Events stored, by type.", (of.EVENT,)),
    Metric("sandherd_ingest_duplicates_total", _C, "{event}", "Duplicate events, which were not stored again."),
    Metric("sandherd_ingest_batch_events", _H, "{event}", "Events in a batch.", (), _COUNTS),
    Metric("sandherd_ingest_lag_messages", _G, "{event}", "Events in the stream that are not stored yet."),
    Metric("sandherd_ingest_lag_seconds", _H, "s", "From the broker's time of an event to its commit."),
    Metric("sandherd_ingest_oldest_seconds", _G, "s", "Age of the oldest event that is not stored yet; 0 if none."),
    Metric(
        "sandherd_ingest_gaps", _G, "{event}", "Events that are missing in the history, by their sources' sequences."
    ),
    Metric("sandherd_history_bytes", _G, "By", "Size of all events in Postgres, with their indexes."),
    Metric("sandherd_history_days_ahead", _G, "{day}", "Days after today that have a partition, without a gap."),
    Metric(
        "sandherd_history_next_drop_seconds",
        _G,
        "s",
        "Time until the next day of the history is due; below 0: it is not dropped yet. Absent: never.",
    ),
    Metric("sandherd_history_held_days", _G, "{day}", "Days of the history that are due and held."),
    Metric("sandherd_history_days_dropped_total", _C, "{day}", "Days of the history that were dropped."),
    Metric("sandherd_history_days_reduced_total", _C, "{day}", "Days from which expired types of events were removed."),
    Metric(
        "sandherd_history_next_reduction_seconds",
        _G,
        "s",
        "Time until events of some types are removed from a day of the history. Absent: never.",
    ),
    Metric("sandherd_history_tasks_deleted_total", _C, "{task}", "Ended tasks that were deleted from the history."),
    Metric("sandherd_history_days_archived_total", _C, "{day}", "Days of which events were archived and verified."),
    Metric(
        "sandherd_history_unarchived_days",
        _G,
        "{day}",
        "Days that are due, but not dropped because they could not be archived. Absent without an archive.",
    ),
    Metric("sandherd_artifacts_stored_total", _C, "{artifact}", "Artifacts that are in the artifact store."),
    Metric("sandherd_artifacts_over_limit", _G, "{artifact}", "Artifacts that wait because of their project's limit."),
    Metric("sandherd_artifacts_lost_total", _C, "{artifact}", "Artifacts that were not complete in their stream."),
    Metric("sandherd_artifacts_waiting", _G, "{artifact}", "Artifacts that are to be stored."),
    Metric("sandherd_artifacts_oldest_seconds", _G, "s", "Longest time that an artifact waits; 0 if none."),
    Metric("sandherd_artifact_store_bytes", _G, "By", "Size of all contents in the artifact store."),
    Metric(
        "sandherd_room_given_bytes_total",
        _C,
        "By",
        "Bytes purged from streams before they are full: the number of messages times their mean size.",
        (of.PURGED_STREAM,),
    ),
    Metric("sandherd_tokens_total", _C, "{token}", "Tokens that agents have used.", (of.TOKEN,)),
    Metric("sandherd_cost_micro_usd_total", _C, "10*-6.{USD}", "Cost of agents, in millionths of a US dollar."),
    Metric("sandherd_model_call_seconds", _H, "s", "Time until a model began to respond.", (), _LONG),
    Metric("sandherd_tool_call_seconds", _H, "s", "Time of an agent's tool call.", (), _LONG),
    Metric("sandherd_turn_seconds", _H, "s", "Time of an agent's turn.", (), _HOURS),
    Metric(
        "sandherd_subscription_lag_messages",
        _G,
        "{event}",
        "Events that wait for a subscription, delivered or not.",
        (of.PROJECT, of.SUBSCRIPTION),
    ),
    Metric(
        "sandherd_subscription_unread_seconds",
        _G,
        "s",
        "Time since events were last fetched from a subscription.",
        (of.PROJECT, of.SUBSCRIPTION),
    ),
    Metric("sandherd_spans_spared_total", _C, "{span}", "Spans of calls not exported because there were too many."),
)
_RELAY: Final = (
    Metric("sandherd_messages_total", _C, "{message}", "Messages to agents, by state.", (of.MESSAGE_STATE,)),
    Metric("sandherd_message_delivery_seconds", _H, "s", "From the command to the worker's receipt."),
    Metric(
        *("sandherd_approvals_total", _C, "{approval}"),
        "Approvals that were requested, rejected, granted, denied or expired.",
        (of.APPROVAL_STATE,),
    ),
    Metric(
        "sandherd_webhook_deliveries_total", _C, "{attempt}", "Attempts to send an event to a webhook.", (of.WEBHOOK,)
    ),
    Metric(
        "sandherd_webhook_delay_seconds",
        _H,
        "s",
        "From the broker's time of an event to its acceptance by a webhook.",
        buckets=_DAYS,
    ),
    Metric(
        "sandherd_webhook_oldest_seconds",
        _G,
        "s",
        "Age of the oldest event that a webhook's receiver has not accepted; 0 if none, and in replicas that do not "
        "send the events of this partition.",
        (of.WEBHOOK_PARTITION,),
    ),
    Metric(
        "sandherd_webhook_events_dropped_total",
        _C,
        "{event}",
        "Maximum of events that the stream may have dropped before webhooks had read them.",
    ),
)
_MONITOR: Final = (
    Metric("sandherd_watched_sandboxes", _G, "{sandbox}", "Sandboxes that the monitor watches."),
    Metric("sandherd_heartbeat_age_seconds", _G, "s", "Longest time since the last event of a live sandbox."),
    Metric(
        "sandherd_spool_events", _G, "{event}", "Events in the spools of live sandboxes that are not published yet."
    ),
    Metric("sandherd_spool_deepest_events", _G, "{event}", "Unpublished events of the sandbox with the most."),
    Metric(
        *("sandherd_calls_in_flight", _G, "{call}"),
        "Calls in flight in live sandboxes: of models, tools, skills and sub-agents, open approvals, and users' "
        "commands. The number for each sandbox is limited.",
    ),
    Metric(
        "sandherd_outage_sandboxes", _G, "{sandbox}", "Live agents that a network or a provider does not respond to."
    ),
    Metric("sandherd_monitor_lag_messages", _G, "{event}", "Events in the stream that the monitor has not read yet."),
    Metric("sandherd_monitor_partitions", _G, "{partition}", "Partitions of the monitor's sandboxes, as configured."),
    Metric("sandherd_monitor_partitions_held", _G, "{partition}", "Partitions that this replica watches."),
    Metric("sandherd_findings_total", _C, "{finding}", "Findings of housekeeping rules, by rule.", (of.FINDING,)),
    Metric(
        "sandherd_rules_disabled_total", _C, "{rule}", "Rules that failed and were disabled for a sandbox.", (of.RULE,)
    ),
    Metric(
        "sandherd_assessments_total",
        _C,
        "{assessment}",
        "Soft findings that a model has assessed, by verdict.",
        (of.STEERING, of.VERDICT),
    ),
    Metric(
        "sandherd_steerings_total",
        _C,
        "{intervention}",
        "Interventions that were decided, and patterns that were only published (`observe`).",
        (of.STEERING, of.STEERING_STEP),
    ),
    Metric(
        "sandherd_interventions_total", _C, "{intervention}", "Interventions, by outcome.", (of.STEERING, of.STEERED)
    ),
    Metric(
        *("sandherd_budgets_exceeded", _G, "{budget}", "Exceeded budgets of live tasks, projects and the herd."),
        (of.BUDGET_SCOPE,),
    ),
    Metric("sandherd_budget_passes_total", _C, "{pass}", "Passes over all budgets.", (of.BUDGET_RESULT,)),
    Metric("sandherd_budget_entries_unreadable", _G, "{entry}", "Ledgers and summaries that can't be read."),
    Metric(
        *("sandherd_budget_crossings_total", _C, "{crossing}", "Budgets of which 80 % or 100 % were used."),
        (of.BUDGET_SCOPE, of.BUDGET_LEVEL),
    ),
    Metric(
        "sandherd_budget_stops_total", _C, "{sandbox}", "Sandboxes ended by an exceeded budget.", (of.BUDGET_SCOPE,)
    ),
    Metric(
        "sandherd_notifications_total",
        _C,
        "{notification}",
        "Notifications that the monitor has published.",
        (of.NOTIFICATION,),
    ),
    Metric("sandherd_conductor_summaries_total", _C, "{summary}", "Changed summaries that the conductor has read."),
    Metric(
        "sandherd_conductor_comparisons_total", _C, "{comparison}", "Comparisons of two sandboxes, by file or title."
    ),
    Metric("sandherd_conductor_published_total", _C, "{event}", "Events of the conductor, by type.", (of.EVENT,)),
    Metric("sandherd_conductor_messages_total", _C, "{message}", "Messages of the conductor to agents."),
    Metric("sandherd_conductor_findings", _G, "{finding}", "Open findings of the conductor.", (of.CONDUCTED,)),
    Metric("sandherd_conductor_sandboxes", _G, "{sandbox}", "Sandboxes that the conductor compares."),
    Metric("sandherd_coherence_lowest_ratio", _G, "1", "The lowest coherence of a project, from 0 to 1."),
)
_GATEWAY: Final = (
    Metric(
        "sandherd_gateway_requests_total",
        _C,
        "{request}",
        "Requests to the HTTP API, by class of status.",
        (of.STATUS,),
    ),
    Metric("sandherd_gateway_request_seconds", _H, "s", "From a request to the start of its response."),
    Metric("sandherd_gateway_streams", _G, "{client}", "Open streams of events."),
    Metric("sandherd_gateway_event_delay_seconds", _H, "s", "From the broker's time of an event until it is sent."),
    Metric("sandherd_gateway_streams_dropped_total", _C, "{client}", "Streams closed because the client was too slow."),
)

GROUPS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "every service": _EVERY,
    "spawner": _SPAWNER,
    "event-ingest": _INGEST,
    "message-relay": _RELAY,
    "monitor": _MONITOR,
    "gateway": _GATEWAY,
}
"""The metrics of each service. If only the holder of a lease knows a gauge's value, no other replica exposes it."""

METRICS: Final = tuple(metric for group in GROUPS.values() for metric in group)
BY_NAME: Final = {metric.name: metric for metric in METRICS}

BORROWED: Final[Mapping[str, str]] = {
    "process_virtual_memory_bytes": "By",
    "process_resident_memory_bytes": "By",
    "process_start_time_seconds": "s",
    "process_cpu_seconds_total": "s",
    "process_open_fds": "{file_descriptor}",
    "process_max_fds": "{file_descriptor}",
    "python_info": "{process}",
    "python_gc_objects_collected_total": "{object}",
    "python_gc_objects_uncollectable_total": "{object}",
    "python_gc_collections_total": "{collection}",
}
"""The units of the metrics that every Python program with prometheus-client exposes, by name."""
