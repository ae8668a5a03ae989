"""The broker permissions of each principal, derived from the subject table and the stream table. Pure.

The package `identity` writes them into tokens. A test checks all of them on a real server (`test_permissions_matrix`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.bus.api_subjects import API
from sandherd.bus.auth.account_names import Account, account_of, api_of
from sandherd.bus.auth.inboxes import inbox
from sandherd.contracts.names import FLEET, UnsafeNameError, safe_name
from sandherd.contracts.streams import (
    BUCKETS,
    CONSUMER_INSPECTORS,
    CONSUMERS,
    LIVE_SUBSCRIBERS,
    MESSAGE_DELETERS,
    MESSAGE_READERS,
    STREAM_PURGERS,
    STREAM_READERS,
    STREAMS,
    Bucket,
    Consumer,
    live_subject,
)
from sandherd.contracts.subjects import PREFIX, TABLE, MessageKind, Principal
from sandherd.contracts.subscriptions import CONSUMER_CREATOR, SUBSCRIPTION_SERVICE, consumer_names
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED

SERVICES: Final = (
    Principal.SPAWNER,
    Principal.EVENT_INGEST,
    Principal.MONITOR,
    Principal.MESSAGE_RELAY,
    Principal.GATEWAY,
)
OF_ONE_PROJECT: Final = (Principal.CLIENT, Principal.SUBSCRIBER)
WORKER_PAYLOAD: Final = 288 * 1024
"""Maximum size of a worker's message in bytes: 256 KiB of data, and space for envelope and headers."""
JOINER_PAYLOAD: Final = 8 * 1024
"""Maximum size of a joiner's message in bytes."""
WORKER_REPLY_SECONDS: Final = 30.0
"""The time for which a worker may reply to a request. No requester waits that long, but a late reply of a worker on a
loaded machine must not be a permission violation."""

DEAD: Final = "DEAD"
PLAIN_SUBSCRIBED: Final = frozenset({MessageKind.EVENT, MessageKind.REQUEST, MessageKind.DELIVERY, MessageKind.OUTPUT})
"""The kinds of message that are received by a subscription. Messages of other kinds are only read from their stream."""
_ALL_PROJECTS: Final = "*"


@dataclass(frozen=True, kw_only=True)
class ReplyPermission:
    """The permission to reply to received messages: `count` messages per reply subject, for `seconds`."""

    count: int = 1
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """The subject patterns that a principal may publish to and subscribe to."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    replies: ReplyPermission | None = None

    def claims(self) -> dict[str, Any]:
        """These permissions as fields of a user's claims, or of a signing key's template."""
        publish: dict[str, Any] = {"allow": list(self.publish)}
        if self.deny_publish:
            publish["deny"] = list(self.deny_publish)
        fields: dict[str, Any] = {"pub": publish, "sub": {"allow": list(self.subscribe)}}
        if self.replies:
            fields["resp"] = {"max": self.replies.count, "ttl": int(self.replies.seconds * 1e9)}
        return fields


def safe_project(name: str) -> str:
    """The name of a project, if a credential may contain it.

    Raises `UnsafeNameError`, also for `fleet`, which means all projects.
    """
    if safe_name(name, "project") == FLEET:
        raise UnsafeNameError(name, "project")
    return name


def for_service(service: Principal) -> Permissions:
    """The permissions of one of the services."""
    own = {"service": service.value}
    return Permissions(
        publish=_unique(
            [*_publish_subjects(service, own), *_bucket_writes(service), *_api(service), probe_subject(service)]
        ),
        subscribe=_unique([*_subscribe_subjects(service, own), *live_of(service), f"{inbox(service, service)}.>"]),
        deny_publish=_unique([*_table_consumers(service), *_requeues_of_all(service)]),
        replies=ReplyPermission(seconds=60),
    )


def for_user(role: Principal, project: str | None, public_key: str) -> Permissions:
    """The permissions of a client or a subscriber in one project, or of an operator in all projects.

    Raises `UnsafeNameError`.
    """
    if role in OF_ONE_PROJECT:
        bound = {"project": safe_project(project or "")}
    elif role is Principal.OPERATOR:
        bound = {"project": _ALL_PROJECTS}
    else:
        raise ValueError(f"{role} is not a role of a client, subscriber or operator")
    return Permissions(
        publish=_unique(
            [
                *_publish_subjects(role, bound),
                *(_pull_subjects(bound["project"]) if role is Principal.SUBSCRIBER else ()),
            ]
        ),
        subscribe=_unique([*_subscribe_subjects(role, bound), f"{inbox(role, public_key)}.>"]),
    )


_TEMPLATE: Final[Mapping[str, str]] = {"project": "{{tag(project)}}", "sandbox": "{{name()}}"}
"""Placeholders in a signing key's template, by field. The broker replaces them with values from the user's token."""


def worker_template() -> Permissions:
    """The permissions of all workers, as the template of the key that signs their tokens."""
    return Permissions(
        publish=_unique(_publish_subjects(Principal.WORKER, _TEMPLATE)),
        subscribe=_unique(
            [*_subscribe_subjects(Principal.WORKER, _TEMPLATE), f"{inbox(Principal.WORKER, '{{name()}}')}.>"]
        ),
        replies=ReplyPermission(seconds=WORKER_REPLY_SECONDS),
    )


def joiner_template() -> Permissions:
    """The permissions of all joiners, as a key's template: only to request the credential of the sandbox's worker."""
    return Permissions(
        publish=_unique(_publish_subjects(Principal.JOINER, _TEMPLATE)),
        subscribe=(f"{inbox(Principal.JOINER, '{{name()}}')}.>",),
    )


def streams_of(service: Principal) -> tuple[str, ...]:
    """The names of the streams that a service publishes to or reads, with those of buckets and of its consumers."""
    return _unique(
        [
            *(row.stream for row in TABLE if row.stream and service in row.producers),
            *(consumer.stream for consumer in consumers_of(service)),
            *STREAM_READERS.get(service, ()),
            *(bucket.stream for bucket in BUCKETS if service in bucket.owners | bucket.readers),
            *([DEAD] if _requeues(service) else []),
            *MESSAGE_READERS.get(service, ()),
            *CONSUMER_INSPECTORS.get(service, ()),
        ]
    )


def live_of(service: Principal) -> tuple[str, ...]:
    """The subjects on which a service outside the streams' account receives republished messages."""
    streams = (*STREAM_READERS.get(service, ()), *LIVE_SUBSCRIBERS.get(service, ()))
    return tuple(live_subject(row.subjects[0]) for row in STREAMS if row.republished and row.name in streams)


def consumers_of(service: Principal) -> tuple[Consumer, ...]:
    """The durable consumers of a service."""
    return tuple(consumer for consumer in CONSUMERS if consumer.service is service)


def _publish_subjects(principal: Principal, values: Mapping[str, str]) -> Iterator[str]:
    return (row.pattern(values) for row in TABLE if principal in row.producers)


def _subscribe_subjects(principal: Principal, values: Mapping[str, str]) -> Iterator[str]:
    rows = [row for row in TABLE if principal in row.consumers and row.kind in PLAIN_SUBSCRIBED]
    events = [row for row in TABLE if row.kind is MessageKind.EVENT]
    if all(row in rows for row in events):
        # One pattern, so that a principal that receives all events may use a single subscription.
        project = values.get("project", _ALL_PROJECTS)
        yield f"{PREFIX}.event.>" if project == _ALL_PROJECTS else f"{PREFIX}.event.{project}.>"
        rows = [row for row in rows if row.kind is not MessageKind.EVENT]
    yield from (row.pattern(values) for row in rows)


def _pull_subjects(project: str) -> Iterator[str]:
    """The subjects to pull events from the project's durable subscriptions, and to acknowledge them."""
    for consumer in consumer_names(project):
        yield from api.consuming(SUBSCRIBED, consumer, api.API_FROM_OUTSIDE)


def _bucket_writes(service: Principal) -> Iterator[str]:
    for bucket in BUCKETS:
        if service in bucket.owners:
            yield f"{bucket_subject(bucket, service)}.>"


def probe_subject(name: str) -> str:
    """The subject of a probe, by which a service or another user (`name`) checks whether the broker stores messages."""
    return f"sandherd.probe.{name}"


def bucket_subject(bucket: Bucket, service: Principal) -> str:
    """The subject prefix of the keys that an owner writes. In a bucket with several owners, it contains the service."""
    own = f".{service}" if len(bucket.owners) > 1 else ""
    return f"$KV.{bucket.name}{own}"


def _api(service: Principal) -> Iterator[str]:
    prefix = api_of(service)
    yield from (f"{prefix}.STREAM.INFO.{stream}" for stream in streams_of(service))
    for consumer in consumers_of(service):
        yield from api.consuming(consumer.stream, consumer.name, prefix)
    for stream in streams_read_by(service):
        yield from api.reading(stream, prefix)
    for stream in CONSUMER_INSPECTORS.get(service, ()):
        yield from api.inspecting(stream, prefix)
    for stream in streams_deleted_from(service):
        yield f"{prefix}.STREAM.MSG.DELETE.{stream}"
    if service is SUBSCRIPTION_SERVICE:
        yield f"{prefix}.CONSUMER.INFO.{SUBSCRIBED}.*"
        yield f"{prefix}.CONSUMER.LIST.{SUBSCRIBED}"
    if account_of(service) is Account.HERD:
        yield from _trusted_subjects(service)


def _trusted_subjects(service: Principal) -> Iterator[str]:
    """Subjects of requests that remove messages of a stream, or whose body can name a subject to publish to.

    Only services in the account of the streams may send these requests, because the broker checks neither body nor
    reply subject.
    """
    for stream in STREAM_PURGERS.get(service, ()):
        yield from api.purging(stream)
    for bucket in BUCKETS:
        if service in bucket.owners:
            yield from api.watching(bucket.stream)
    if service is CONSUMER_CREATOR:
        yield from api.managing_consumers(SUBSCRIBED)
        for consumer in CONSUMERS:
            yield from api.declaring_consumer(consumer.stream, consumer.name)


def streams_read_by(service: Principal) -> tuple[str, ...]:
    """The names of the streams from which a service reads single messages."""
    buckets = [bucket.stream for bucket in BUCKETS if service in bucket.owners | bucket.readers]
    dead = [DEAD] if _requeues(service) else []
    followed = (*STREAM_READERS.get(service, ()), *MESSAGE_READERS.get(service, ()))
    return _unique([*followed, *buckets, *_inboxes(service), *dead])


def streams_deleted_from(service: Principal) -> tuple[str, ...]:
    """The names of the streams from which a service deletes single messages.

    Only the spawner deletes dead letters. The other services send it a request to delete one.
    """
    dead = [DEAD] if account_of(service) is Account.HERD else []
    return (*_inboxes(service), *dead, *MESSAGE_DELETERS.get(service, ()))


def _inboxes(service: Principal) -> tuple[str, ...]:
    return ("INBOX",) if any(row.kind is MessageKind.INBOX and service in row.consumers for row in TABLE) else ()


def _requeues(service: Principal) -> bool:
    return any(row.name == f"request.{service}.requeue" for row in TABLE)


def _table_consumers(service: Principal) -> Iterator[str]:
    """Denied subjects: a service that may delete subscriptions' consumers may not delete those of the stream table."""
    if service is CONSUMER_CREATOR:
        for consumer in CONSUMERS:
            if consumer.stream == SUBSCRIBED:
                yield f"{API}.CONSUMER.DELETE.{consumer.stream}.{consumer.name}"


def _requeues_of_all(service: Principal) -> Iterator[str]:
    """Denied subjects: the gateway may requeue dead letters of its caller's project, but not those of all projects."""
    if service is Principal.GATEWAY:
        yield from (row.fill(project=FLEET) for row in TABLE if row.name.endswith(".requeue"))


def _unique(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(patterns))
