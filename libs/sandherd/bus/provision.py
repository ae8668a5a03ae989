"""Streams, durable consumers and buckets: made from `contracts.streams`, in this one place, as often as one likes.

Written with plain nats-py, because FastStream's declaring rewrites a stream to defaults of its own.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)
from nats.js.errors import APIError, NotFoundError

from sandherd.bus.errors import NOBODY_LEADS
from sandherd.bus.permissions import consumers_of, streams_of
from sandherd.bus.setting_up import Did
from sandherd.contracts.streams import BUCKETS, CONSUMERS, STREAMS, Bucket, Consumer, Retention, Stream, live_subject
from sandherd.contracts.subjects import Principal

_COMPARED: Final = (
    "subjects",
    "retention",
    "discard",
    "storage",
    "max_age",
    "max_bytes",
    "max_msgs_per_subject",
    "discard_new_per_subject",
    "duplicate_window",
    "allow_direct",
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "deny_delete",
    "subject_delete_marker_ttl",
    "republish",
)
_REPLICAS: Final = "num_replicas"
_NOT_YET: Final = NOBODY_LEADS | {10005}
"""And `JSClusterNoPeersErrF`, of servers that have just been started and do not know of each other yet."""
_OTHER_VERSION: Final = "it was made by another version: empty and delete it, or bring back that version"
_COMPARED_CONSUMER: Final = ("filter_subjects", "ack_policy", "ack_wait", "max_deliver", "max_ack_pending")


class ProvisionError(Exception):
    """The broker would not take a declaration; the message names it and says what to do."""


@dataclass(frozen=True)
class Done:
    """What was done about something declared. `thing` is like `stream EVENTS`."""

    thing: str
    did: Did


@dataclass(frozen=True)
class Fault:
    """Something that is missing or other than declared. `thing` is like `stream EVENTS`."""

    thing: str
    problem: str

    def __str__(self) -> str:
        return f"{self.thing}: {self.problem}"


def stream_config(stream: Stream, replicas: int = 1) -> StreamConfig:
    """A stream as the broker is told it. Everything is on disk and may be read directly."""
    return StreamConfig(
        name=stream.name,
        description=stream.says,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.retention is Retention.WORK_QUEUE else RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW if stream.refuse_when_full else DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_age=stream.max_age,
        max_bytes=stream.max_bytes,
        max_msgs_per_subject=stream.max_messages_per_subject,
        discard_new_per_subject=stream.refuse_when_full and stream.max_messages_per_subject > 0,
        duplicate_window=stream.duplicate_window,
        num_replicas=replicas,
        allow_direct=True,
        allow_msg_ttl=stream.own_lives or None,
        republish=_republish(stream.subjects[0]) if stream.told_live else None,
    )


def _republish(subject: str) -> RePublish:
    return RePublish(src=subject, dest=live_subject(subject))


def bucket_config(bucket: Bucket, replicas: int = 1) -> StreamConfig:
    """A bucket's stream, as nats-py's key-value calls expect it. One value is kept for each key.

    Any message may carry a life of its own; `ttl_markers` also leaves a marker for so many seconds when one ends.
    """
    return StreamConfig(
        name=bucket.stream,
        description=bucket.says,
        subjects=[f"$KV.{bucket.name}.>"],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        max_age=0,
        max_bytes=bucket.max_bytes,
        max_msgs_per_subject=1,
        duplicate_window=120,
        num_replicas=replicas,
        allow_direct=True,
        allow_rollup_hdrs=True,
        allow_msg_ttl=True,
        deny_delete=True,
        subject_delete_marker_ttl=bucket.ttl_markers,
    )


def consumer_config(consumer: Consumer) -> ConsumerConfig:
    """A durable pull consumer. Our own code counts deliveries, so the broker never gives one up.

    It is kept as often as its stream is.
    """
    return ConsumerConfig(
        name=consumer.name,
        durable_name=consumer.name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=consumer.ack_wait,
        max_deliver=-1,
        max_ack_pending=consumer.max_ack_pending,
        filter_subjects=list(consumer.filters),
    )


async def provision(js: JetStreamContext, replicas: int | None = None) -> list[Done]:
    """Make what is missing, and change what differs. Raises `ProvisionError` where the broker does not allow that.

    `replicas` is on how many servers each stream is kept. Without it a stream stays on as many as it is on, and a new
    one is on one. Raises nats-py's `Error`, also while a cluster is not ready for it.
    """
    compared = (*_COMPARED, _REPLICAS) if replicas else _COMPARED
    done = [
        Done(f"stream {name}", await _provision_stream(js, name, config, compared))
        for name, config in _streams(replicas or 1).items()
    ]
    return done + [Done(_named(consumer), await _provision_consumer(js, consumer)) for consumer in CONSUMERS]


async def check(js: JetStreamContext, service: Principal) -> list[Fault]:
    """What a service needs and does not find, or finds other than declared. Empty if all is well.

    It asks only for what that service's own credential may see.
    """
    faults: list[Fault] = []
    declared = _streams()
    for name in streams_of(service):
        faults += await _look(f"stream {name}", js.stream_info(name), declared[name], _COMPARED)
    for consumer in consumers_of(service):
        faults += await _look(
            _named(consumer),
            js.consumer_info(consumer.stream, consumer.name),
            consumer_config(consumer),
            _COMPARED_CONSUMER,
        )
    return faults


def _streams(replicas: int = 1) -> dict[str, StreamConfig]:
    return {
        **{stream.name: stream_config(stream, replicas) for stream in STREAMS},
        **{bucket.stream: bucket_config(bucket, replicas) for bucket in BUCKETS},
    }


async def _provision_stream(js: JetStreamContext, name: str, wanted: StreamConfig, names: tuple[str, ...]) -> Did:
    try:
        found = (await js.stream_info(name)).config
    except NotFoundError:
        await _try(f"stream {name}", js.add_stream(wanted), "make room for it, or raise the broker's limits")
        return Did.MADE
    if not differs(wanted, found, names):
        return Did.KEPT
    if _REPLICAS not in names:
        wanted = wanted.evolve(num_replicas=found.num_replicas)
    await _try(f"stream {name}", js.update_stream(wanted), _OTHER_VERSION)
    return Did.CHANGED


async def _provision_consumer(js: JetStreamContext, consumer: Consumer) -> Did:
    wanted = consumer_config(consumer)
    try:
        found = (await js.consumer_info(consumer.stream, consumer.name)).config
    except NotFoundError:
        found = None
    if found is not None and not differs(wanted, found, _COMPARED_CONSUMER):
        return Did.KEPT
    # Creating an existing consumer changes it, where that is allowed; its place in the stream stays.
    await _try(_named(consumer), js.add_consumer(consumer.stream, wanted), _OTHER_VERSION)
    return Did.MADE if found is None else Did.CHANGED


def _named(consumer: Consumer) -> str:
    return f"consumer {consumer.name} on {consumer.stream}"


async def _try(thing: str, call: Awaitable[Any], remedy: str) -> None:
    try:
        await call
    except APIError as error:
        if error.err_code in _NOT_YET:
            raise
        raise ProvisionError(f"{thing}: the broker refuses what is declared ({error.description}); {remedy}") from error


async def _look(thing: str, ask: Awaitable[Any], wanted: Any, names: tuple[str, ...]) -> list[Fault]:
    try:
        found = (await ask).config
    except NotFoundError:
        return [Fault(thing, "missing; run `sandherd provision`, or `sandherd up`")]
    return [
        Fault(thing, f"{name} is {given!r}, declared is {want!r}; run `sandherd provision`, or `sandherd up`")
        for name, (want, given) in differs(wanted, found, names).items()
    ]


def differs(wanted: Any, found: Any, names: tuple[str, ...]) -> Mapping[str, tuple[Any, Any]]:
    """The fields of two configurations that say different things: name → (wanted, found)."""
    pairs = {name: (_plain(getattr(wanted, name)), _plain(getattr(found, name))) for name in names}
    if "filter_subjects" in pairs:
        # One filter may come back in the singular field.
        single = getattr(found, "filter_subject", None)
        want, given = pairs["filter_subjects"]
        pairs["filter_subjects"] = (want, given or ([single] if single else given))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _plain(value: Any) -> Any:
    """The broker leaves out what is zero, false or none; to us they are the same."""
    if isinstance(value, list | tuple):
        return sorted(value)
    return value or None
