"""What the broker lets each principal do: derived from the subject table and the stream table, written nowhere by hand.

Pure: the identity package puts these into tokens, and the permission matrix test checks them on a real server.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.bus.account_names import Account, account_of, api_of
from sandherd.bus.api_subjects import API
from sandherd.contracts.names import FLEET, JOINER_SUFFIX, UnsafeNameError, safe_name
from sandherd.contracts.streams import (
    BUCKETS,
    CONSUMERS,
    ERASERS,
    FOLLOWERS,
    LISTENERS,
    LOOKUPS,
    ROOM_ASKERS,
    ROOM_GIVERS,
    STREAMS,
    Bucket,
    Consumer,
    live_subject,
)
from sandherd.contracts.subjects import PREFIX, TABLE, Mood, Principal
from sandherd.contracts.subscriptions import GIVER, SUBSCRIPTIONS_OF, consumer_names
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED

SERVICES: Final = (Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR, Principal.MESSAGE_RELAY)
PEOPLE: Final = (Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR)
OF_ONE_PROJECT: Final = (Principal.CLIENT, Principal.SUBSCRIBER)
WORKER_PAYLOAD: Final = 288 * 1024
"""A worker's largest message in bytes: 256 KiB of data (design §4) and room for envelope and headers."""
JOINER_PAYLOAD: Final = 8 * 1024
WORKER_ANSWERS_IN: Final = 30.0
"""How long a worker may take to answer, in seconds. Nobody waits that long; a machine under load must not make a
violation of what was only late."""

DEAD: Final = "DEAD"
HEARD_DIRECTLY: Final = frozenset({Mood.EVENT, Mood.REQUEST, Mood.DELIVERY, Mood.OUTPUT})
"""Moods that are heard by a plain subscription; the others are read from their stream only."""
_ALL_PROJECTS: Final = "*"


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The right to answer what was received: so many messages to each reply subject, for so many seconds."""

    count: int = 1
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Permissions:
    """What may be published and subscribed to, as the broker's subject patterns."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()
    answers: Answers | None = None

    def claims(self) -> dict[str, Any]:
        """The members of a user's claims, or of a signing key's template, that say this."""
        publish: dict[str, Any] = {"allow": list(self.publish)}
        if self.deny_publish:
            publish["deny"] = list(self.deny_publish)
        found: dict[str, Any] = {"pub": publish, "sub": {"allow": list(self.subscribe)}}
        if self.answers:
            found["resp"] = {"max": self.answers.count, "ttl": int(self.answers.seconds * 1e9)}
        return found


def safe_project(name: str) -> str:
    """A project's name that may stand in a credential. Raises `UnsafeNameError`; `fleet` means all of them."""
    if safe_name(name, "project") == FLEET:
        raise UnsafeNameError(name, "project")
    return name


def inbox(principal: Principal, name: str) -> str:
    """The prefix of a principal's reply subjects, without the last dot.

    `name` is the service's or the sandbox's, and for a person the public key: names of people are free, and may meet.
    """
    return f"_INBOX_{name}{JOINER_SUFFIX if principal is Principal.JOINER else ''}"


def for_service(service: Principal) -> Permissions:
    """The rights of one of the four services."""
    own = {"service": service.value}
    return Permissions(
        publish=_unique([*_said(service, own), *_bucket_writes(service), *_api(service), probe_subject(service)]),
        subscribe=_unique([*_heard(service, own), *live_of(service), f"{inbox(service, service)}.>"]),
        deny_publish=_unique(_table_consumers(service)),
        answers=Answers(seconds=60),
    )


def for_person(role: Principal, project: str | None, public_key: str) -> Permissions:
    """The rights of a client or a subscriber in one project, or of an operator in all. Raises `UnsafeNameError`."""
    if role in OF_ONE_PROJECT:
        bound = {"project": safe_project(project or "")}
    elif role is Principal.OPERATOR:
        bound = {"project": _ALL_PROJECTS}
    else:
        raise ValueError(f"{role} is no role of a person")
    return Permissions(
        publish=_unique([*_said(role, bound), *(_taken(bound["project"]) if role is Principal.SUBSCRIBER else ())]),
        subscribe=_unique([*_heard(role, bound), f"{inbox(role, public_key)}.>"]),
    )


_TEMPLATE: Final[Mapping[str, str]] = {"project": "{{tag(project)}}", "sandbox": "{{name()}}"}
"""How a signing key's template says "this user's own": filled in by the broker from the user's token."""


def worker_template() -> Permissions:
    """The rights of every worker, as the template of its signing key."""
    return Permissions(
        publish=_unique(_said(Principal.WORKER, _TEMPLATE)),
        subscribe=_unique([*_heard(Principal.WORKER, _TEMPLATE), f"{inbox(Principal.WORKER, '{{name()}}')}.>"]),
        answers=Answers(seconds=WORKER_ANSWERS_IN),
    )


def joiner_template() -> Permissions:
    """The rights of every joiner: to ask for its own sandbox's credential, and to hear the answer."""
    return Permissions(
        publish=_unique(_said(Principal.JOINER, _TEMPLATE)),
        subscribe=(f"{inbox(Principal.JOINER, '{{name()}}')}.>",),
    )


def streams_of(service: Principal) -> tuple[str, ...]:
    """The streams that a service says, follows, consumes or keeps state in, by name."""
    return _unique(
        [
            *(row.stream for row in TABLE if row.stream and service in row.producers),
            *(consumer.stream for consumer in consumers_of(service)),
            *FOLLOWERS.get(service, ()),
            *(bucket.stream for bucket in BUCKETS if service in bucket.owners | bucket.readers),
            *([DEAD] if _requeues(service) else []),
            *LOOKUPS.get(service, ()),
            *ROOM_ASKERS.get(service, ()),
        ]
    )


def live_of(service: Principal) -> tuple[str, ...]:
    """The subjects on which a service outside the streams' account receives what is stored: it is republished there."""
    heard = (*FOLLOWERS.get(service, ()), *LISTENERS.get(service, ()))
    return tuple(live_subject(row.subjects[0]) for row in STREAMS if row.told_live and row.name in heard)


def consumers_of(service: Principal) -> tuple[Consumer, ...]:
    """The durable consumers of a service."""
    return tuple(consumer for consumer in CONSUMERS if consumer.service is service)


def _said(principal: Principal, values: Mapping[str, str]) -> Iterator[str]:
    return (row.pattern(values) for row in TABLE if principal in row.producers)


def _heard(principal: Principal, values: Mapping[str, str]) -> Iterator[str]:
    rows = [row for row in TABLE if principal in row.consumers and row.mood in HEARD_DIRECTLY]
    events = [row for row in TABLE if row.mood is Mood.EVENT]
    if all(row in rows for row in events):
        # Who hears every event may do so with one subscription.
        project = values.get("project", _ALL_PROJECTS)
        yield f"{PREFIX}.event.>" if project == _ALL_PROJECTS else f"{PREFIX}.event.{project}.>"
        rows = [row for row in rows if row.mood is not Mood.EVENT]
    yield from (row.pattern(values) for row in rows)


def _taken(project: str) -> Iterator[str]:
    """Taking events from the project's durable subscriptions, and acknowledging them."""
    for consumer in consumer_names(project):
        yield from api.consuming(SUBSCRIBED, consumer, api.API_FROM_OUTSIDE)


def _bucket_writes(service: Principal) -> Iterator[str]:
    for bucket in BUCKETS:
        if service in bucket.owners:
            yield f"{bucket_subject(bucket, service)}.>"


def probe_subject(name: str) -> str:
    """Where a service, or another that checks whether the broker stores, writes its probe."""
    return f"sandherd.probe.{name}"


def bucket_subject(bucket: Bucket, service: Principal) -> str:
    """Where an owner's keys are: a bucket of several owners has a part for each, `<service>.<key>`."""
    own = f".{service}" if len(bucket.owners) > 1 else ""
    return f"$KV.{bucket.name}{own}"


def _api(service: Principal) -> Iterator[str]:
    prefix = api_of(service)
    yield from (f"{prefix}.STREAM.INFO.{stream}" for stream in streams_of(service))
    for consumer in consumers_of(service):
        yield from api.consuming(consumer.stream, consumer.name, prefix)
    for stream in read_by(service):
        yield from api.reading(stream, prefix)
    for stream in ROOM_ASKERS.get(service, ()):
        yield from api.inspecting(stream, prefix)
    for stream in deleted_by(service):
        yield f"{prefix}.STREAM.MSG.DELETE.{stream}"
    if service is SUBSCRIPTIONS_OF:
        yield f"{prefix}.CONSUMER.INFO.{SUBSCRIBED}.*"
    if account_of(service) is Account.HERD:
        yield from _trusted(service)


def _trusted(service: Principal) -> Iterator[str]:
    """Requests whose body can name a subject that the broker then publishes to, or that empty a stream.

    Only in the account of the streams: the broker checks neither body nor reply subject.
    """
    for stream in ROOM_GIVERS.get(service, ()):
        yield from api.giving_room(stream)
    for bucket in BUCKETS:
        if service in bucket.owners:
            yield from api.watching(bucket.stream)
    if service is GIVER:
        yield from api.making(SUBSCRIBED)
        for consumer in CONSUMERS:
            yield from api.declaring_consumer(consumer.stream, consumer.name)


def read_by(service: Principal) -> tuple[str, ...]:
    """The streams of which a service reads single messages, by name."""
    buckets = [bucket.stream for bucket in BUCKETS if service in bucket.owners | bucket.readers]
    dead = [DEAD] if _requeues(service) else []
    followed = (*FOLLOWERS.get(service, ()), *LOOKUPS.get(service, ()))
    return _unique([*followed, *buckets, *_inboxes(service), *dead])


def deleted_by(service: Principal) -> tuple[str, ...]:
    """The streams out of which a service takes messages by number: the relay's own, and the spawner's.

    The other services ask the spawner to delete a dead letter.
    """
    dead = [DEAD] if account_of(service) is Account.HERD else []
    return (*_inboxes(service), *dead, *ERASERS.get(service, ()))


def _inboxes(service: Principal) -> tuple[str, ...]:
    return ("INBOX",) if any(row.mood is Mood.INBOX and service in row.consumers for row in TABLE) else ()


def _requeues(service: Principal) -> bool:
    return any(row.name == f"request.{service}.requeue" for row in TABLE)


def _table_consumers(service: Principal) -> Iterator[str]:
    """Who deletes consumers of subscriptions must not delete a durable of the table."""
    if service is GIVER:
        for consumer in CONSUMERS:
            if consumer.stream == SUBSCRIBED:
                yield f"{API}.CONSUMER.DELETE.{consumer.stream}.{consumer.name}"


def _unique(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(patterns))
