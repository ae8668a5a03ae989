"""What the broker lets each principal do: derived from the subject table and the stream table, written nowhere by hand.

Pure: the identity package puts these into tokens, and the permission matrix test checks them on a real server.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandherd.bus import api_subjects as api
from sandherd.bus.api_subjects import API
from sandherd.contracts.names import FLEET, UnsafeNameError, safe_name
from sandherd.contracts.streams import BUCKETS, CONSUMERS, FOLLOWERS, LOOKUPS, ROOM_GIVERS, Bucket, Consumer
from sandherd.contracts.subjects import PREFIX, TABLE, Mood, Principal
from sandherd.contracts.subscriptions import GIVER, consumer_names
from sandherd.contracts.subscriptions import STREAM as SUBSCRIBED

SERVICES: Final = (Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR, Principal.MESSAGE_RELAY)
PEOPLE: Final = (Principal.CLIENT, Principal.SUBSCRIBER, Principal.OPERATOR)
OF_ONE_PROJECT: Final = (Principal.CLIENT, Principal.SUBSCRIBER)
SANDBOX_PREFIX: Final = "sbx-"
WORKER_PAYLOAD: Final = 288 * 1024
"""A worker's largest message in bytes: 256 KiB of data (design §4) and room for envelope and headers."""
JOINER_PAYLOAD: Final = 8 * 1024
WORKER_ANSWERS_IN: Final = 30.0
"""How long a worker may take to answer, in seconds. Nobody waits that long; a machine under load must not make a
violation of what was only late."""

_JOIN: Final = "-join"
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


def safe_sandbox(name: str) -> str:
    """A sandbox's name that may stand in a credential. Raises `UnsafeNameError`.

    It begins with `sbx-`, so that none reads a service's replies, and does not end with `-join`, so that no worker
    reads the replies of another sandbox's joiner.
    """
    if not safe_name(name, "sandbox").startswith(SANDBOX_PREFIX) or name.endswith(_JOIN):
        raise UnsafeNameError(name, "sandbox")
    return name


def safe_project(name: str) -> str:
    """A project's name that may stand in a credential. Raises `UnsafeNameError`; `fleet` means all of them."""
    if safe_name(name, "project") == FLEET:
        raise UnsafeNameError(name, "project")
    return name


def inbox(principal: Principal, name: str) -> str:
    """The prefix of a principal's reply subjects, without the last dot.

    `name` is the service's or the sandbox's, and for a person the public key: names of people are free, and may meet.
    """
    return f"_INBOX_{name}{_JOIN if principal is Principal.JOINER else ''}"


def for_service(service: Principal) -> Permissions:
    """The rights of one of the four services."""
    own = {"service": service.value}
    return Permissions(
        publish=_unique([*_said(service, own), *_bucket_writes(service), *_api(service), *_made(service)]),
        subscribe=_unique([*_heard(service, own), f"{inbox(service, service)}.>"]),
        deny_publish=_unique(_others_consumers(service)),
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
            *(["DEAD"] if _requeues(service) else []),
        ]
    )


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


def bucket_subject(bucket: Bucket, service: Principal) -> str:
    """Where an owner's keys are: a bucket of several owners has a part for each, `<service>.<key>`."""
    own = f".{service}" if len(bucket.owners) > 1 else ""
    return f"$KV.{bucket.name}{own}"


def _api(service: Principal) -> Iterator[str]:
    yield from (f"{API}.STREAM.INFO.{stream}" for stream in streams_of(service))
    for consumer in consumers_of(service):
        yield from api.consuming(consumer.stream, consumer.name)
    for streams, use in ((FOLLOWERS, api.following), (LOOKUPS, api.reading), (ROOM_GIVERS, api.giving_room)):
        for stream in streams.get(service, ()):
            yield from use(stream)
    for bucket in BUCKETS:
        if service in bucket.owners | bucket.readers:
            yield from api.reading(bucket.stream)
        if service in bucket.owners:
            yield from api.watching(bucket.stream)
    for stream in _read_by_sequence(service):
        yield from (*api.reading(stream), f"{API}.STREAM.MSG.DELETE.{stream}")


def _made(service: Principal) -> Iterator[str]:
    """Making durable consumers for subscribers."""
    return api.making(SUBSCRIBED) if service is GIVER else iter(())


def _read_by_sequence(service: Principal) -> Iterator[str]:
    """Streams without consumers whose messages a service takes out one by one."""
    if any(row.mood is Mood.INBOX and service in row.consumers for row in TABLE):
        yield "INBOX"
    if _requeues(service):
        yield "DEAD"


def _requeues(service: Principal) -> bool:
    return any(row.name == f"request.{service}.requeue" for row in TABLE)


def _others_consumers(service: Principal) -> Iterator[str]:
    """Who names consumers freely must not touch a durable of the table: neither another's nor its own."""
    followed = (*FOLLOWERS.get(service, ()), *([SUBSCRIBED] if service is GIVER else []))
    for consumer in CONSUMERS:
        if consumer.stream not in followed:
            continue
        where = f"{consumer.stream}.{consumer.name}"
        yield from (f"{API}.CONSUMER.CREATE.{where}", f"{API}.CONSUMER.CREATE.{where}.>")
        yield f"{API}.CONSUMER.DELETE.{where}"
        if consumer.service is not service:
            yield f"{API}.CONSUMER.MSG.NEXT.{where}"


def _unique(patterns: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(patterns))
