"""Every label, once: its name, its meaning and all of its values. What is none of them is counted as `other`.

So no id, subject or text ever becomes a label, whatever a service hands over. Values that a service owns are repeated
here, as libs know no service; a test compares both.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from sandherd.contracts.commands import COMMANDS
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EVENTS
from sandherd.contracts.events.monitor import MonitorInterventionOutcome
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.specs import Priority
from sandherd.contracts.states import ApprovalState, MessageState, SandboxState, TaskState
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS
from sandherd.settings.fields import RuntimeName

OTHER: Final = "other"
LEASES: Final = ("spawner.scheduler", "spawner.sweep", "message-relay.delivery", "monitor.watch", "event-ingest.room")
IDLE_RULES: Final = ("dead", "too_old", "finished", "stuck", "idle", "flooding")
STEERING_RULES: Final = ("loop",)
WARM_STATES: Final = ("requested", "ready", "claimed")
EXCESSES: Final = ("messages", "bytes", "project_messages", "connections", "reported")
LATE: Final = ("unknown_sandbox", "unknown_task", "old_attempt", "task_ended", "repeated", "not_its_own")


@dataclass(frozen=True)
class Label:
    """A label of a metric, and the values that it may have there."""

    name: str
    says: str
    values: frozenset[str]


def _label(name: str, says: str, values: Iterable[str]) -> Label:
    return Label(name, says, frozenset(map(str, values)))


CONSUMER: Final = _label("consumer", "A durable consumer.", (row.name for row in CONSUMERS))
KEPT: Final = _label(
    "stream", "A stream, or that of a bucket.", (*(row.name for row in STREAMS), *(row.stream for row in BUCKETS))
)
FOLDER: Final = _label("folder", "A folder of the home.", ("home", "broker", "database", "sandboxes"))
DELIVERY: Final = _label("outcome", "Done, to be tried again, or put into DEAD.", ("done", "retry", "dead"))
REQUEST: Final = _label("request", "A kind of request.", REQUESTS)
ANSWER: Final = _label("outcome", "`ok`, or the code of the refusal.", ("ok", *Code))
CODE: Final = _label("code", "Why it could not be handled.", Code)
DROPPED: Final = _label("reason", "Too slow, or the oldest of too many.", ("slow", "evicted"))
LEASE: Final = _label("lease", "What only one replica does at a time.", LEASES)
SIGNAL: Final = _label("signal", "What is exported.", ("traces", "metrics"))
EXPORT: Final = _label("outcome", "Taken by the collector, or given up.", ("sent", "lost"))
TASK_STATE: Final = _label("state", "A task's state.", TaskState)
TASK_END: Final = _label("state", "The state it ended in.", ("completed", "failed", "cancelled"))
SANDBOX_STATE: Final = _label("state", "A sandbox's state.", SandboxState)
RUNTIME: Final = _label("runtime", "Where sandboxes run.", get_args(RuntimeName))
STATE_KIND: Final = _label("kind", "Whose state.", ("TaskState", "SandboxState", "MessageState", "ApprovalState"))
LATE_REASON: Final = _label("reason", "Why it changes nothing.", LATE)
PRIORITY: Final = _label("priority", "The task's priority.", get_args(Priority))
ATTEMPT: Final = _label("outcome", "How it ended, or that another follows.", ("retried", *TASK_END.values))
ERROR_TYPE: Final = _label("error_type", "Why the attempt failed.", ErrorType)
COMMAND: Final = _label("command", "A kind of command.", COMMANDS)
WARM: Final = _label("state", "How far it has come.", WARM_STATES)
CLAIM: Final = _label("outcome", "What came of it.", ("claimed", "empty", "lost"))
EXCESS: Final = _label("excess", "What there was too much of.", EXCESSES)
ORPHAN: Final = _label("outcome", "What became of it.", ("found", "removed"))
EXEC: Final = _label("outcome", "What came of it.", ("started", "refused", "unanswered"))
EVENT: Final = _label("type", "A type of event.", EVENTS)
ROOM: Final = _label("stream", "A stream that room is made in.", ("EVENTS", "ARTIFACTS"))
TOKEN: Final = _label("kind", "Which tokens.", ("input", "output", "cache_read", "cache_write"))
CALL: Final = _label("outcome", "Whether the call went well.", ("ok", "error"))
MESSAGE_STATE: Final = _label("state", "The state reached.", MessageState)
APPROVAL_STATE: Final = _label("state", "The state reached.", ("requested", "rejected", *ApprovalState))
FINDING: Final = _label("rule", "What the idle watch finds.", IDLE_RULES)
STEERING: Final = _label("rule", "The guardian's rule.", STEERING_RULES)
STEERED: Final = _label(
    "outcome", "What the agent made of it.", get_args(MonitorInterventionOutcome.model_fields["outcome"].annotation)
)
