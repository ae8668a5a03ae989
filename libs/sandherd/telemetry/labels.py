"""The table of all labels: name, meaning and allowed values. Any other value is counted as `other`.

So no id, subject or text ever becomes a label, whatever a service passes. Values that a service defines are repeated
here, because libs import no service; a test compares both. The names of the monitor's rules are generated.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, get_args

from sandherd.contracts import monitor_rules
from sandherd.contracts.budgets import BudgetScope
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.monitor import AssessmentVerdict, ConductorFindingKind, InterventionOutcome, SteeringStep
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.names import SAFE_NAME_PATTERN
from sandherd.contracts.schedules import RunOutcome
from sandherd.contracts.specs import Priority
from sandherd.contracts.states import ApprovalState, MessageState, NotificationKind, SandboxState, TaskState
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.contracts.subjects import TABLE, MessageKind
from sandherd.settings.fields import OWN_RUNTIMES

OTHER: Final = "other"
_SAFE_NAME: Final = re.compile(SAFE_NAME_PATTERN)
WEBHOOK_PARTITIONS: Final = ("0", "1", "2", "3")
LEASES: Final = (
    "spawner.scheduler",
    "spawner.sweep",
    "message-relay.delivery",
    *(f"message-relay.webhooks-{number}" for number in WEBHOOK_PARTITIONS),
    "monitor.watch",
    "monitor.conductor",
    "monitor.budgets",
    "event-ingest.room",
)
WARM_STATES: Final = ("requested", "ready", "claimed")
EXCESSES: Final = ("messages", "bytes", "project_messages", "connections", "reported")
BRANCH_STEPS: Final = (
    *("prepare", "save", "push"),
    *("open_pull_request", "mark_ready", "poll_pull_request", "merge", "find_conflict", "follow_up"),
)
PULL_REQUEST_STATES: Final = ("open", "queued", "stuck", "refused")
BRANCH_OUTCOMES: Final = ("done", "denied", "refused", "unavailable")
PROXY_REFUSALS: Final = (*("credential", "ended", "forge", "limit", "path", "ref", "request", "unavailable"),)
LATE: Final = ("unknown_sandbox", "unknown_task", "old_attempt", "task_ended", "repeated", "not_its_own")


@dataclass(frozen=True)
class Label:
    """A label of a metric, and its allowed values."""

    name: str
    meaning: str
    values: frozenset[str]
    named: bool = False
    """Whether any safe name is allowed. The code that sets the label then limits the number of its values."""

    def admits(self, value: str) -> bool:
        """Whether the label may have this value."""
        return value in self.values or (self.named and _SAFE_NAME.fullmatch(value) is not None)


def _types(kind: MessageKind) -> Iterator[str]:
    """All types of a kind of message, from the table of subjects, so that no model has to be imported for its name."""
    return (row.name.partition(".")[2] for row in TABLE if row.kind is kind)


def _label(name: str, meaning: str, values: Iterable[str]) -> Label:
    return Label(name, meaning, frozenset(map(str, values)))


CONSUMER: Final = _label("consumer", "A durable consumer.", (row.name for row in CONSUMERS))
STREAM: Final = _label(
    "stream", "A stream, or that of a bucket.", (*(row.name for row in STREAMS), *(row.stream for row in BUCKETS))
)
FOLDER: Final = _label("folder", "A folder of the home.", ("home", "broker", "database", "sandboxes"))
DELIVERY: Final = _label("outcome", "Done, to be retried, or stored in DEAD.", ("done", "retry", "dead"))
REQUEST: Final = _label("request", "The type of the request.", _types(MessageKind.REQUEST))
ANSWER: Final = _label("outcome", "`ok`, or the code of the refusal.", ("ok", *Code))
CODE: Final = _label("code", "Why the message could not be handled.", Code)
DROPPED: Final = _label(
    "reason",
    "An exchange that took too long, the oldest of too many connections, or invalid data.",
    ("slow", "evicted", "invalid"),
)
LEASE: Final = _label("lease", "The lease: it permits work that only one replica does at a time.", LEASES)
SIGNAL: Final = _label("signal", "What is exported.", ("traces", "metrics"))
EXPORT: Final = _label("outcome", "Accepted by the collector, or dropped.", ("sent", "lost"))
TASK_STATE: Final = _label("state", "A task's state.", TaskState)
TASK_END: Final = _label("state", "The final state of the task.", ("completed", "failed", "cancelled"))
SANDBOX_STATE: Final = _label("state", "A sandbox's state.", SandboxState)
RUNTIME: Final = _label("runtime", "Where sandboxes run.", OWN_RUNTIMES)
STATE_KIND: Final = _label(
    "kind", "The kind of the state.", ("TaskState", "SandboxState", "MessageState", "ApprovalState")
)
LATE_REASON: Final = _label("reason", "Why the event has no effect.", LATE)
PRIORITY: Final = _label("priority", "The task's priority.", get_args(Priority))
ATTEMPT: Final = _label(
    "outcome", "How the attempt ended; `retried` if another attempt follows.", ("retried", *TASK_END.values)
)
ERROR_TYPE: Final = _label("error_type", "Why the attempt failed.", ErrorType)
COMMAND: Final = _label("command", "The type of the command.", _types(MessageKind.COMMAND))
WARM: Final = _label("state", "The state of the warm sandbox.", WARM_STATES)
CLAIM: Final = _label("outcome", "The outcome of the claim.", ("claimed", "empty", "lost"))
DUE_TIME: Final = _label("outcome", "The outcome of the due time.", get_args(RunOutcome))
BRANCH_STEP: Final = _label(
    "step",
    "A fetch before a task, commits of a sandbox, a push or deletion at a forge, or a step of a pull request.",
    BRANCH_STEPS,
)
BRANCH_OUTCOME: Final = _label("outcome", "Whether the step was done, or why not.", BRANCH_OUTCOMES)
PROXY_REFUSAL: Final = _label(
    "reason",
    "A wrong credential, a sandbox that has ended, a limit, a path, a ref or a request that is not permitted, or a "
    "forge or a broker that did not serve the request.",
    PROXY_REFUSALS,
)
PULL_REQUEST_STATE: Final = _label(
    "state",
    "Open, in a merge queue, in a merge queue for longer than an hour, or with a step that the forge refused.",
    PULL_REQUEST_STATES,
)
FORGE: Final = Label(
    "host", "The host of a forge that has a credential, with dashes in place of dots.", frozenset(), True
)
EXCESS: Final = _label("excess", "What was exceeded.", EXCESSES)
ROLE: Final = _label("role", "The role of a user's credential.", ("client", "subscriber", "operator"))
ORPHAN: Final = _label("outcome", "Whether the sandbox was found or removed.", ("found", "removed"))
EXEC: Final = _label("outcome", "The outcome of the request.", ("started", "refused", "unanswered"))
EVENT: Final = _label("type", "The type of the event.", EVENTS)
PROJECT: Final = Label(
    "project",
    "The project of the subscription; only the 100 subscriptions with most unread events are counted.",
    frozenset(),
    True,
)
SUBSCRIPTION: Final = Label("subscription", "The name of the subscription.", frozenset(), True)
PURGED_STREAM: Final = _label("stream", "A stream that is purged to make space.", ("EVENTS", "ARTIFACTS"))
TOKEN: Final = _label("kind", "The kind of tokens.", ("input", "output", "cache_read", "cache_write"))
STATUS: Final = _label("status", "The class of the response's status.", ("2xx", "4xx", "5xx"))
MESSAGE_STATE: Final = _label("state", "The new state of the message.", MessageState)
_DECISIONS: Final = tuple(state for state in ApprovalState if state is not ApprovalState.PENDING)
APPROVAL_STATE: Final = _label("state", "A request, or its decision.", ("requested", "rejected", *_DECISIONS))
WEBHOOK: Final = _label("outcome", "Accepted, to be sent again, or a dead letter.", ("accepted", "failed", "given_up"))
WEBHOOK_PARTITION: Final = _label("partition", "The partition of the webhooks.", WEBHOOK_PARTITIONS)
FINDING: Final = _label("rule", "The housekeeping rule.", monitor_rules.HOUSEKEEPING)
STEERING: Final = _label("rule", "The guardian's rule.", monitor_rules.GUARDIAN)
RULE: Final = _label("rule", "The monitor's rule.", (row.name for row in monitor_rules.RULES))
BUDGET_SCOPE: Final = _label("scope", "The scope of the budget.", get_args(BudgetScope))
BUDGET_LEVEL: Final = _label("level", "Whether 80 % or 100 % of the budget are used.", ("warned", "exceeded"))
BUDGET_RESULT: Final = _label("result", "`failed`: the pass is repeated.", ("ok", "failed"))
NOTIFICATION: Final = _label("kind", "What a notification is about.", NotificationKind)
VERDICT: Final = _label(
    "verdict", "The model's verdict; `none` if there is no verdict.", (*get_args(AssessmentVerdict), "none")
)
CONDUCTED: Final = _label("kind", "The kind of the finding.", get_args(ConductorFindingKind))
STEERING_STEP: Final = _label("step", "The step of the intervention ladder.", get_args(SteeringStep))
STEERED: Final = _label("outcome", "How the agent reacted.", get_args(InterventionOutcome))
