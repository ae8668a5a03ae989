"""What the broker keeps: streams, the durable consumers on them, and the buckets. Created by `bus.provision` alone."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sandherd.contracts.subjects import PREFIX, Principal

_MIB: Final = 1024 * 1024
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR


class Retention(StrEnum):
    """When the broker lets a message go."""

    LIMITS = "limits"
    WORK_QUEUE = "workqueue"


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream: what it keeps, how long in seconds, and how much in bytes.

    `refuse_when_full` refuses the newest message when the limit is reached, so that nothing acknowledged is dropped;
    otherwise the oldest go. The same holds for each subject alone, where `max_messages_per_subject` is given.
    """

    name: str
    subjects: tuple[str, ...]
    says: str
    retention: Retention = Retention.LIMITS
    max_age: float
    max_bytes: int
    max_messages_per_subject: int = -1
    refuse_when_full: bool = False
    duplicate_window: float = 120.0
    own_lives: bool = False
    """Whether a message may say how long it is kept, in its header `Nats-TTL`."""
    told_live: bool = False
    """Whether each message, once it is stored, is also published for people who listen (`live_subject`)."""


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A durable pull consumer. `ack_wait` is in seconds; deliveries are endless, our own code counts them."""

    name: str
    stream: str
    service: Principal
    filters: tuple[str, ...]
    ack_wait: float = 10.0
    max_ack_pending: int = 100_000  # what a flood brought is handed back to come later, unacknowledged meanwhile

    @property
    def label(self) -> str:
        """The name with its stream, for people."""
        return f"consumer {self.name} on {self.stream}"


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A key-value bucket. `ttl_markers` allows keys with a life of their own."""

    name: str
    says: str
    owners: frozenset[Principal]
    readers: frozenset[Principal] = frozenset()
    ttl_markers: float | None = None
    max_bytes: int = 1024 * _MIB
    erasable: bool = False
    """Whether single messages may be deleted, so that the broker writes over their bytes."""

    @property
    def stream(self) -> str:
        """The stream behind the bucket."""
        return f"KV_{self.name}"


LIVE: Final = "sandherd.live"


def live_subject(subject: str) -> str:
    """Where what was stored on this subject is published again, for people and services in other accounts."""
    return f"{LIVE}.{subject}"


def stored_subject(live: str) -> str:
    """The subject that was stored, of one that it was published again on."""
    return live.removeprefix(f"{LIVE}.")


MOST_WAITING: Final = 200
"""So many messages may wait for one sandbox."""

STREAMS: Final[tuple[Stream, ...]] = (
    Stream(
        name="EVENTS",
        subjects=(f"{PREFIX}.event.>",),
        says="Everything that happened; the truth for what is happening.",
        told_live=True,
        max_age=7 * _DAY,
        max_bytes=8192 * _MIB,
        refuse_when_full=True,  # all share it: whoever says much must not push out what others said
        duplicate_window=300.0,
    ),
    Stream(
        name="COMMANDS",
        subjects=(f"{PREFIX}.command.>",),
        says="What was asked for and not done yet.",
        retention=Retention.WORK_QUEUE,
        max_age=7 * _DAY,
        max_bytes=512 * _MIB,
        refuse_when_full=True,
    ),
    Stream(
        name="INBOX",
        subjects=(f"{PREFIX}.inbox.>",),
        says="Messages that wait for their sandbox.",
        max_age=7 * _DAY,
        max_bytes=512 * _MIB,  # a subject is a sandbox: one that takes none must not take the room of the others
        max_messages_per_subject=MOST_WAITING,
        refuse_when_full=True,
    ),
    Stream(
        name="OUTPUT",
        subjects=(f"{PREFIX}.output.>",),
        says="Terminal output, short-lived.",
        told_live=True,
        max_age=6 * _HOUR,
        max_bytes=2048 * _MIB,
        max_messages_per_subject=10_000,
    ),
    Stream(
        name="ARTIFACTS",
        subjects=(f"{PREFIX}.artifact.>",),
        says="Large payloads, in chunks.",
        own_lives=True,
        max_age=7 * _DAY,
        max_bytes=8192 * _MIB,
        refuse_when_full=True,
    ),
    Stream(
        name="DEAD",
        subjects=(f"{PREFIX}.dead.>",),
        says="What could not be handled, with its reason.",
        max_age=30 * _DAY,
        max_bytes=1024 * _MIB,
    ),
    Stream(
        name="PROBE",
        subjects=("sandherd.probe.*",),
        says="Test writes, one for each who checks that the broker stores.",
        max_age=_HOUR,
        max_bytes=4 * _MIB,
        max_messages_per_subject=1,
    ),
)

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
        name="message-relay-agents",
        stream="EVENTS",
        service=Principal.MESSAGE_RELAY,
        filters=tuple(
            f"{PREFIX}.event.*.*.agent.{action}"
            for action in ("approval_requested", "approval_withdrawn", "message_sent")
        ),
    ),
    Consumer(
        name="spawner-agents",
        stream="EVENTS",
        service=Principal.SPAWNER,
        filters=tuple(
            f"{PREFIX}.event.*.*.agent.{action}"
            for action in ("started", "completed", "failed", "shutdown", "work_saved", "transcript_saved")
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
        says="Each task as it stands.",
        owners=frozenset({Principal.SPAWNER}),
        readers=frozenset({Principal.MESSAGE_RELAY}),  # an approval outlives its sandbox as long as its task goes on
    ),
    Bucket(
        name="sandboxes",
        says="Each sandbox as it stands.",
        owners=frozenset({Principal.SPAWNER}),
        readers=frozenset({Principal.MESSAGE_RELAY, Principal.MONITOR}),
    ),
    Bucket(
        name="pool",
        says="Sandboxes that are started beforehand and wait for a task.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="approvals",
        says="What agents ask leave for, and what was answered.",
        owners=frozenset({Principal.MESSAGE_RELAY}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="revocations",
        says="Credentials that are no longer good, until they expire.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
    ),
    Bucket(
        name="secrets",
        says="Named secrets of projects, encrypted with keys of `secret_keys`.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=256 * _MIB,
    ),
    Bucket(
        name="secret_keys",
        says="The keys that secrets in records are encrypted with, each erased when its record needs it no more.",
        owners=frozenset({Principal.SPAWNER}),
        max_bytes=64 * _MIB,
        erasable=True,
    ),
    Bucket(
        name="monitor",
        says="The monitor's snapshot of the herd.",
        owners=frozenset({Principal.MONITOR}),
    ),
    Bucket(
        name="leases",
        says="Who may do what only one may do at a time.",
        owners=frozenset({Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR, Principal.MESSAGE_RELAY}),
        ttl_markers=60.0,
        max_bytes=64 * _MIB,
    ),
)

FOLLOWERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MONITOR: ("EVENTS",),
}
"""Streams that a service reads from a sequence of its own: stored messages by direct reads, new ones by subscribing to
where the stream publishes them again (`live_subject`). It has no consumer."""

LISTENERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MESSAGE_RELAY: ("EVENTS",),
}
"""Streams of which a service receives what is stored from now on, by republishing."""

LOOKUPS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.MESSAGE_RELAY: ("EVENTS",),
    Principal.SPAWNER: ("ARTIFACTS",),
    Principal.EVENT_INGEST: ("EVENTS", "OUTPUT", "DEAD", "ARTIFACTS"),
}
"""Streams of which a service reads single messages: what it said before it was started again, what it hands on in
pieces, or how old what waits for it is."""

ERASERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.SPAWNER: ("COMMANDS", "KV_secret_keys"),
}
"""Streams of which a service deletes single messages, and their bytes: commands with secrets, and keys."""

ROOM_GIVERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.SPAWNER: ("EVENTS", "ARTIFACTS"),
}
"""Streams that a service purges, each time event-ingest asks and the request passes its checks."""

ROOM_ASKERS: Final[dict[Principal, tuple[str, ...]]] = {
    Principal.EVENT_INGEST: ("EVENTS", "ARTIFACTS"),
}
"""Streams whose durable consumers a service looks at, to know what may be purged."""

BY_CONSUMER: Final = {consumer.name: consumer for consumer in CONSUMERS}
BY_STREAM: Final = {stream.name: stream for stream in STREAMS}
