"""What the broker stores: streams, their durable consumers, and buckets. Only `bus.provision` creates them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandherd.contracts.events.access import AgentBranchSaved, AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentShutdown, AgentStarted
from sandherd.contracts.events.base import EventData
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.events.tools import AgentApprovalRequested, AgentApprovalWithdrawn
from sandherd.contracts.subjects import PREFIX, Principal

_MIB: Final = 1024 * 1024
_HOUR_SECONDS: Final = 3600.0
_DAY_SECONDS: Final = 24 * _HOUR_SECONDS


class Retention(StrEnum):
    """When the broker deletes a message."""

    LIMITS = "limits"
    WORK_QUEUE = "workqueue"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream: what it stores, its maximum age in seconds, and its maximum size in bytes.

    If `refuse_when_full` is set, the broker refuses new messages at the limit, so that no acknowledged message is
    dropped; otherwise it deletes the oldest messages. The same applies to the messages of each subject if
    `max_messages_per_subject` is set.
    """

    name: str
    subjects: tuple[str, ...]
    description: str
    retention: Retention = Retention.LIMITS
    max_age: float
    max_bytes: int
    max_messages_per_subject: int = -1
    refuse_when_full: bool = False
    duplicate_window: float = 120.0
    per_message_ttl: bool = False
    """Whether a message may set how long it is stored, in its header `Nats-TTL`."""
    republished: bool = False
    """Whether each stored message is republished to subscribers (`live_subject`).

    Republishing takes the broker 8 µs of CPU time for each message, even without a subscriber. A push consumer would
    take 3 µs, and only while it exists. But a consumer delivers all messages on one subject. A program may instead
    subscribe to some of the live subjects of its project, and needs no request that could create a consumer
    (docs/subscribe.md).
    """


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A durable pull consumer. `ack_wait` is in seconds. Deliveries are not limited: the services count them."""

    name: str
    stream: str
    service: Principal
    filters: tuple[str, ...]
    ack_wait: float = 10.0
    max_ack_pending: int = 100_000  # messages of a flood are unacknowledged until their later redelivery

    @property
    def label(self) -> str:
        """The name of the consumer and its stream, for display."""
        return f"consumer {self.name} on {self.stream}"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A key-value bucket. Its keys may have their own TTL."""

    name: str
    description: str
    owners: frozenset[Principal]
    readers: frozenset[Principal] = frozenset()
    max_bytes: int = 1024 * _MIB
    erasable: bool = False
    """Whether single messages may be deleted, so that the broker overwrites their bytes."""

    @property
    def stream(self) -> str:
        """The stream that stores the bucket."""
        return f"KV_{self.name}"


LIVE: Final = "sandherd.live"


def live_subject(subject: str) -> str:
    """The subject on which messages of `subject` are republished, for clients and services in other accounts."""
    return f"{LIVE}.{subject}"


def stored_subject(live: str) -> str:
    """The original subject of a republished message."""
    return live.removeprefix(f"{LIVE}.")


MAX_INBOX_MESSAGES: Final = 200
"""Maximum number of messages that wait for one sandbox."""

STREAMS: Final[tuple[Stream, ...]] = (
    Stream(
        name="EVENTS",
        subjects=(f"{PREFIX}.event.>",),
        description="All events; the source of truth for the current state.",
        republished=True,
        max_age=7 * _DAY_SECONDS,
        max_bytes=8192 * _MIB,
        refuse_when_full=True,  # all sources share the stream: a flood must not push out the events of others
        duplicate_window=300.0,
    ),
    Stream(
        name="COMMANDS",
        subjects=(f"{PREFIX}.command.>",),
        description="Commands that are not carried out yet.",
        retention=Retention.WORK_QUEUE,
        max_age=7 * _DAY_SECONDS,
        max_bytes=512 * _MIB,
        refuse_when_full=True,
    ),
    Stream(
        name="INBOX",
        subjects=(f"{PREFIX}.inbox.>",),
        description="Messages that wait for their sandbox.",
        max_age=7 * _DAY_SECONDS,
        max_bytes=512 * _MIB,  # a sandbox that accepts no messages must not use up the space of others
        max_messages_per_subject=MAX_INBOX_MESSAGES,
        refuse_when_full=True,
    ),
    Stream(
        name="OUTPUT",
        subjects=(f"{PREFIX}.output.>",),
        description="Terminal output, stored for a short time.",
        republished=True,
        max_age=6 * _HOUR_SECONDS,
        max_bytes=2048 * _MIB,
        max_messages_per_subject=10_000,
    ),
    Stream(
        name="ARTIFACTS",
        subjects=(f"{PREFIX}.artifact.>",),
        description="Large payloads, in chunks.",
        per_message_ttl=True,
        max_age=7 * _DAY_SECONDS,
        max_bytes=8192 * _MIB,
        refuse_when_full=True,
    ),
    Stream(
        name="DEAD",
        subjects=(f"{PREFIX}.dead.>",),
        description="Dead letters: messages that could not be handled, with the reason.",
        max_age=30 * _DAY_SECONDS,
        max_bytes=1024 * _MIB,
    ),
    Stream(
        name="PROBE",
        subjects=("sandherd.probe.*",),
        description="Test writes, the last one of each component that checks that the broker stores messages.",
        max_age=_HOUR_SECONDS,
        max_bytes=4 * _MIB,
        max_messages_per_subject=1,
    ),
)


def _all_events(*models: type[EventData]) -> tuple[str, ...]:
    """The subjects of all events of these types."""
    return tuple(f"{PREFIX}.event.*.*.{model.type}" for model in models)


CONSUMERS: Final[tuple[Consumer, ...]] = (
    Consumer(
        name="spawner-commands", stream="COMMANDS", service=Principal.SPAWNER, filters=(f"{PREFIX}.command.spawner.>",)
    ),
    Consumer(
        name="message-relay-commands",
        stream="COMMANDS",
        service=Principal.MESSAGE_RELAY,
        filters=(f"{PREFIX}.command.message-relay.>",),
    ),
    Consumer(
        name="monitor-commands", stream="COMMANDS", service=Principal.MONITOR, filters=(f"{PREFIX}.command.monitor.>",)
    ),
    Consumer(
        name="message-relay-agents",
        stream="EVENTS",
        service=Principal.MESSAGE_RELAY,
        filters=_all_events(AgentApprovalRequested, AgentApprovalWithdrawn, AgentMessageSent),
    ),
    Consumer(
        name="spawner-agents",
        stream="EVENTS",
        service=Principal.SPAWNER,
        filters=_all_events(
            *(AgentStarted, AgentCompleted, AgentFailed, AgentShutdown),
            *(AgentWorkSaved, AgentBranchSaved, AgentTranscriptSaved),
        ),
    ),
    Consumer(
        name="event-ingest",
        stream="EVENTS",
        service=Principal.EVENT_INGEST,
        filters=(f"{PREFIX}.event.>",),
        max_ack_pending=300_000,
    ),
)

BUCKETS: Final[tuple[Bucket, ...]] = (
    Bucket(
        name="tasks",
        description="The current state of each task.",
        owners=frozenset({Principal.SPAWNER}),
        readers=frozenset({Principal.MESSAGE_RELAY}),  # an approval outlives its sandbox until its task ends
    ),
    Bucket(
        name="sandboxes",
        description="The current state of each sandbox.",
        owners=frozenset({Principal.SPAWNER}),
        readers=frozenset({Principal.MESSAGE_RELAY, Principal.MONITOR}),
    ),
    Bucket(
        name="pool",
        description="Sandboxes that are started in advance and wait for a task.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="projects",
        description="Projects with limits, or defaults of their tasks, of their own.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="approvals",
        description="Approvals that agents requested, and their answers.",
        owners=frozenset({Principal.MESSAGE_RELAY}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="messages",
        description="Names of messages that clients sent, each reserved for a day after its message expires.",
        owners=frozenset({Principal.MESSAGE_RELAY}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="webhooks",
        description="Webhooks of projects: where to, which events, and up to which they are delivered.",
        owners=frozenset({Principal.MESSAGE_RELAY}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="webhook_secrets",
        description="Secrets of webhooks, encrypted with keys of `secret_keys`.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="revocations",
        description="Revoked credentials, until they expire.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="schedules",
        description="Schedules of tasks, and which of their due times were decided.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="branches",
        description="The branches that tasks work on, and what was saved and pushed of each.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="secrets",
        description="Named secrets of projects, encrypted with keys of `secret_keys`.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="secret_keys",
        description=(
            "The keys that secrets in records are encrypted with, each erased when its record no longer needs it."
        ),
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
        erasable=True,
    ),
    Bucket(
        name="tokens",
        description="Access tokens and sessions of the HTTP API: the hash of each, its project, role and expiry.",
        owners=frozenset({Principal.SPAWNER}),
        readers=frozenset({Principal.GATEWAY}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="monitor",
        description="The monitor's snapshot of the herd.",
        owners=frozenset({Principal.MONITOR}),
    ),
    Bucket(
        name="summaries",
        description="The monitor's summary of each sandbox: its task, spending, edits and findings.",
        owners=frozenset({Principal.MONITOR}),
        max_bytes=512 * _MIB,
    ),
    Bucket(
        name="budgets",
        description="What tasks and projects have used of their budgets, what was granted, and which are over budget.",
        owners=frozenset({Principal.MONITOR}),
        readers=frozenset({Principal.SPAWNER}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="leases",
        description="Leases: who may do what only one may do at a time.",
        owners=frozenset({Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR, Principal.MESSAGE_RELAY}),
        max_bytes=64 * _MIB,
    ),
)

STREAM_READERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MONITOR: ("EVENTS",),
    Principal.GATEWAY: ("EVENTS",),
}
"""Streams that a service reads from a sequence that it remembers. It reads stored messages by direct reads, and new
messages by a subscription to the republished subjects (`live_subject`), without a consumer."""

LIVE_SUBSCRIBERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MESSAGE_RELAY: ("EVENTS",),
}
"""Streams whose new messages a service receives because they are republished."""

MESSAGE_READERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MESSAGE_RELAY: ("EVENTS",),
    Principal.SPAWNER: ("ARTIFACTS", "COMMANDS"),
    Principal.EVENT_INGEST: ("EVENTS", "OUTPUT", "DEAD", "ARTIFACTS"),
}
"""Streams from which a service reads single messages: messages that it published before a restart, artifacts that it
forwards in chunks, or waiting messages, to find out their age or size."""

MESSAGE_DELETERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.SPAWNER: ("COMMANDS", "KV_secret_keys"),
}
"""Streams from which a service deletes single messages, and erases their bytes: commands with secrets, and keys."""

STREAM_PURGERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.SPAWNER: ("EVENTS", "ARTIFACTS"),
}
"""Streams that a service purges after checks, when event-ingest requests it."""

CONSUMER_INSPECTORS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.EVENT_INGEST: ("EVENTS", "ARTIFACTS"),
}
"""Streams whose durable consumers a service inspects, to find out what may be purged."""

BY_CONSUMER: Final = {consumer.name: consumer for consumer in CONSUMERS}
BY_STREAM: Final = {stream.name: stream for stream in STREAMS}
