"""Every principal against every subject, on a real broker: no permission is excessive or missing.

The expected permissions are read from the tables here, row by row, and not with the code that makes permissions.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product

import pytest
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, ConnectionCallbacks, ConnectionIdentity
from sandherd.bus.identity.claims import CLAIMS_INBOX
from sandherd.contracts import streams as rules
from sandherd.contracts.subjects import TABLE, MessageKind, Principal, Subject
from sandherd.stack.broker import Broker

P, Kind = Principal, MessageKind
SPAWNER, INGEST, RELAY = frozenset({P.SPAWNER}), frozenset({P.EVENT_INGEST}), frozenset({P.MESSAGE_RELAY})
LIVE = frozenset({P.MONITOR, P.MESSAGE_RELAY, P.GATEWAY})  # receive what the stream of events republishes
SERVICES = frozenset({P.SPAWNER, P.EVENT_INGEST, P.MONITOR, P.MESSAGE_RELAY, P.GATEWAY})
PROJECT, SANDBOX = "p1", "sbx-1"
REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')

TOKENS = {
    "project": (PROJECT, "p2", "fleet"),
    "sandbox": (SANDBOX, "sbx-2", "sbx-1-join"),
    "entity": (SANDBOX, "task-1", "fleet"),
    "action": ("started", "completed"),
    "artifact": ("art-1",),
    "service": (*SERVICES, "worker"),
    "reason": ("invalid-json",),
}


@dataclass(frozen=True)
class Publisher:
    """One credential under test; that of a sandbox, a client or a subscriber is bound to project p1."""

    principal: Principal
    bus: Bus
    violations: list[str]

    async def refused(self, verb: str) -> set[str]:
        """The broker's refusals since the last call.

        It flushes twice, because nats-py writes a flush's PING before what it still has to send.
        """
        await self.bus.client.flush(timeout=300)
        await self.bus.client.flush(timeout=300)
        found = {match[2] for text in self.violations if (match := REFUSED.search(text.lower())) and match[1] == verb}
        self.violations.clear()
        return found


@pytest.fixture
async def speakers(herd: Broker) -> AsyncIterator[list[Publisher]]:
    async with AsyncExitStack() as stack:
        found = []
        for principal in Principal:
            watch = ConnectionCallbacks()
            violations: list[str] = []
            watch.violated = violations.append
            bus = herd.bus(principal, project=PROJECT, sandbox=SANDBOX, watch=watch)
            found.append(Publisher(principal, await stack.enter_async_context(bus), violations))
        yield found


# --- what should be allowed: the subject table -------------------------------------------------------------------


def subjects(row: Subject) -> Iterator[tuple[str, dict[str, str]]]:
    """Every subject of a row, with the values of its tokens."""
    names = re.findall(r"{(\w+)}", row.template)
    for values in product(*(TOKENS[name] for name in names)):
        tokens = dict(zip(names, values, strict=True))
        yield row.template.format(**tokens), tokens


def is_own(principal: Principal, row: Subject, tokens: dict[str, str]) -> bool:
    """Whether these tokens are the principal's own, as far as it is bound to any."""
    if principal in {P.WORKER, P.JOINER}:
        return tokens["project"] == PROJECT and tokens["sandbox"] == SANDBOX
    if principal in {P.CLIENT, P.SUBSCRIBER}:
        return tokens["project"] == PROJECT
    if principal is P.GATEWAY and row.name.endswith(".requeue"):
        return tokens["project"] != "fleet"
    return row.kind is not Kind.DEAD or tokens["service"] == principal


def may_publish(principal: Principal, row: Subject, tokens: dict[str, str]) -> bool:
    return principal in row.producers and is_own(principal, row, tokens)


def may_receive(principal: Principal, row: Subject, tokens: dict[str, str]) -> bool:
    """Whether it may subscribe: commands, waiting messages, artifacts and dead letters are only read from streams."""
    by_stream = row.kind in {Kind.COMMAND, Kind.INBOX, Kind.ARTIFACT, Kind.DEAD}
    return principal in row.consumers and not by_stream and is_own(principal, row, tokens)


# --- what should be allowed: the broker's own subjects -----------------------------------------------------------

Expected = dict[str, frozenset[Principal]]
NO_ONE: frozenset[Principal] = frozenset()
ALL_STREAMS = (*(stream.name for stream in rules.STREAMS), *(bucket.stream for bucket in rules.BUCKETS))
OWNERS = {bucket.stream: bucket.owners for bucket in rules.BUCKETS}
READERS = {bucket.stream: bucket.owners | bucket.readers for bucket in rules.BUCKETS}
REQUEUERS = frozenset(s for s in SERVICES if any(row.name == f"request.{s}.requeue" for row in TABLE))


def readers(stream: str) -> frozenset[Principal]:
    """The services that read single messages of a stream."""
    found = [s for t in (rules.STREAM_READERS, rules.MESSAGE_READERS) for s, names in t.items() if stream in names]
    dead = REQUEUERS if stream == "DEAD" else NO_ONE
    return READERS.get(stream, NO_ONE) | frozenset(found) | dead | (RELAY if stream == "INBOX" else NO_ONE)


def purgers(stream: str) -> frozenset[Principal]:
    return frozenset(service for service, streams in rules.STREAM_PURGERS.items() if stream in streams)


def inspectors(stream: str) -> frozenset[Principal]:
    """The services that may read the position of every durable consumer of a stream."""
    return purgers(stream) | frozenset(s for s, names in rules.CONSUMER_INSPECTORS.items() if stream in names)


def durables(stream: str) -> dict[str, Principal]:
    return {consumer.name: consumer.service for consumer in rules.CONSUMERS if consumer.stream == stream}


def takers(stream: str) -> frozenset[Principal]:
    """The services that delete single messages: the relay its own; the spawner dead letters, commands and keys."""
    return {"INBOX": RELAY, **dict.fromkeys(("DEAD", "COMMANDS", "KV_secret_keys"), SPAWNER)}.get(stream, NO_ONE)


def users(stream: str) -> frozenset[Principal]:
    """The services that use a stream in any way, and may request its state."""
    sayers = {service for row in TABLE if row.stream == stream for service in row.producers & SERVICES}
    return readers(stream) | inspectors(stream) | sayers | {*durables(stream).values()}


def of_api(rest: str, allowed: frozenset[Principal]) -> Iterator[tuple[str, frozenset[Principal]]]:
    """The subjects of a request to JetStream in the account of the streams, and in all other accounts."""
    yield f"$JS.API.{rest}", allowed & SPAWNER
    yield f"$JS.herd.API.{rest}", allowed - SPAWNER


def of_streams() -> Iterator[tuple[str, frozenset[Principal]]]:
    for stream in ALL_STREAMS:
        yield from of_api(f"STREAM.INFO.{stream}", users(stream))
        yield from of_api(f"STREAM.MSG.GET.{stream}", readers(stream))
        yield from of_api(f"DIRECT.GET.{stream}", readers(stream))
        yield from of_api(f"DIRECT.GET.{stream}.some.subject", readers(stream))
        yield from of_api(f"STREAM.MSG.DELETE.{stream}", takers(stream))
        yield from of_api(f"STREAM.PURGE.{stream}", purgers(stream))
        yield f"$JS.FC.{stream}.name.x", OWNERS.get(stream, NO_ONE) & SPAWNER
        for verb in ("CREATE", "UPDATE", "DELETE", "SNAPSHOT", "RESTORE", "LEADER.STEPDOWN", "PEER.REMOVE"):
            yield from of_api(f"STREAM.{verb}.{stream}", NO_ONE)
        for verb in ("NAMES", "LIST"):
            yield from of_api(f"CONSUMER.{verb}.{stream}", INGEST if (verb, stream) == ("LIST", "EVENTS") else NO_ONE)


SUBSCRIBED = {"sub-p1-1": True, "sub-p1-16": True, "sub-p1-17": False}  # from which a subscriber of p1 may pull
OTHERS = ("monitor-follow-1", "event-ingest-follow-1", "anything", "sub-p2-1", "sub-p1-1-1", "sub-p1", "sub-p-1")


def of_consumers() -> Iterator[tuple[str, frozenset[Principal]]]:
    for stream in ALL_STREAMS:
        # nats-py's key-value calls create a consumer without a name, only on buckets.
        watching = OWNERS.get(stream, NO_ONE) & SPAWNER
        making = SPAWNER if stream == "EVENTS" else NO_ONE  # for subscribers; it may not pull from them itself
        yield from of_api(f"CONSUMER.CREATE.{stream}", watching)
        for name in (*OTHERS, *SUBSCRIBED) if stream == "EVENTS" else (OTHERS[0], "sub-p1-1"):
            taking = frozenset({P.SUBSCRIBER}) if stream == "EVENTS" and SUBSCRIBED.get(name) else NO_ONE
            looking = {"EVENTS": SPAWNER | INGEST}.get(stream, watching)
            yield from of_api(f"CONSUMER.CREATE.{stream}.{name}", making)
            yield from of_api(f"CONSUMER.CREATE.{stream}.{name}.sandherd.v1.>", making)
            yield from _on_consumer(stream, name, taking=taking, info=looking | taking, delete=making | watching)
        for name, service in durables(stream).items():
            looking = (INGEST if stream == "EVENTS" else NO_ONE) | {service} | SPAWNER  # which creates it
            yield from of_api(f"CONSUMER.CREATE.{stream}.{name}", SPAWNER)
            yield from of_api(f"CONSUMER.CREATE.{stream}.{name}.sandherd.v1.>", SPAWNER)
            yield from _on_consumer(stream, name, taking=frozenset({service}), info=looking, delete=NO_ONE)


def _on_consumer(
    stream: str, name: str, *, taking: frozenset[Principal], info: frozenset[Principal], delete: frozenset[Principal]
) -> Iterator[tuple[str, frozenset[Principal]]]:
    yield from of_api(f"CONSUMER.INFO.{stream}.{name}", info)
    yield from of_api(f"CONSUMER.MSG.NEXT.{stream}.{name}", taking)
    yield from of_api(f"CONSUMER.DELETE.{stream}.{name}", delete)
    for verb in ("DURABLE.CREATE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN"):
        yield from of_api(f"CONSUMER.{verb}.{stream}.{name}", NO_ONE)
    yield f"$JS.ACK.{stream}.{name}.1.1.1.1.0", taking
    yield f"$JS.ACK._.hash.{stream}.{name}.1.1.1.1.0.x", taking


def of_buckets() -> Iterator[tuple[str, frozenset[Principal]]]:
    for bucket in rules.BUCKETS:
        shared = len(bucket.owners) > 1
        yield f"$KV.{bucket.name}.p1.task-1", NO_ONE if shared else bucket.owners
        for service in SERVICES:
            own = frozenset({service}) & bucket.owners if shared else bucket.owners
            yield f"$KV.{bucket.name}.{service}.tick", own


def without_principal() -> Iterator[tuple[str, frozenset[Principal]]]:
    """Subjects to which no principal of the table may publish."""
    names = [*SERVICES, "sbx-1", "sbx-2", "sbx-1-join", "provisioner", "spawner-claims", "UABC"]
    yield from ((f"_INBOX_{name}.abc.1", NO_ONE) for name in names)
    yield from ((subject, NO_ONE) for subject in ("_INBOX.abc", "$JS.API.INFO", "$JS.API.STREAM.NAMES"))
    yield from ((f"$JS.API.{rest}", NO_ONE) for rest in ("STREAM.LIST", "META.LEADER.STEPDOWN", "ACCOUNT.PURGE.x"))
    yield from ((f"$SYS.REQ.{rest}", NO_ONE) for rest in ("CLAIMS.UPDATE", "SERVER.PING", "ACCOUNT.PING.CONNZ"))
    yield from ((f"sandherd.v2.event.{PROJECT}.{SANDBOX}.agent.started", NO_ONE), ("anything.else", NO_ONE))


BROKERS_OWN: Expected = dict([*of_streams(), *of_consumers(), *of_buckets(), *without_principal()])

MALFORMED = (
    "sandherd.v1.x.y",
    "sandherd.v1.event",
    "sandherd.v1.event.p1",
    "sandherd.v1.event.p1.sbx-1.agent",
    "sandherd.v1.event.p1.sbx-1.agent.started.more",
    "sandherd.v1.event.p1.sbx-1.other.started",
    "sandherd.v1.command.spawner.submit_task",
    "sandherd.v1.request.spawner.tasks",
    "sandherd.v1.request.spawner.exec",
    "sandherd.v1.request.spawner.exec.p1.sbx-1",
    "sandherd.v1.request.spawner.fetch.p1",
    "sandherd.v1.request.spawner.peers.p1",
    "sandherd.v1.request.worker.exec.p1",
    "sandherd.v1.request.worker.other.p1.sbx-1",
    "sandherd.v1.request.worker.exec.p1.sbx-1.more",
    "sandherd.v1.artifact.p1.sbx-1",
    "sandherd.v1.artifact.p1.sbx-1.upl-1.more",
    "sandherd.v1.output.p1.sbx-1.more",
    "sandherd.v1.output.p1",
)
"""Subjects that resemble those of the table. No principal may publish to them; subscriptions have no effect."""

WILDCARDS = (
    ">",
    "*",
    "*.>",
    "sandherd.>",
    "sandherd.v1.>",
    "sandherd.v1.*.>",
    "sandherd.v1.event.>",
    "sandherd.v1.event.*.>",
    "sandherd.v1.event.p1.>",
    "sandherd.v1.event.*.sbx-1.>",
    "sandherd.v1.event.p1.sbx-2.agent.*",
    "sandherd.v1.command.>",
    "sandherd.v1.request.>",
    "sandherd.v1.request.spawner.*.*",
    "sandherd.v1.request.spawner.credential.*.*",
    "sandherd.v1.request.spawner.fetch.*.*",
    "sandherd.v1.request.spawner.peers.*.*",
    "sandherd.v1.request.spawner.peers.p1.*",
    "sandherd.v1.request.*.exec.>",
    "sandherd.v1.request.worker.>",
    "sandherd.v1.request.worker.*.p1.sbx-1",
    "sandherd.v1.request.worker.exec.p1.*",
    "sandherd.v1.request.worker.exec.*.sbx-1",
    "sandherd.v1.request.worker.upload.*.*",
    "sandherd.v1.inbox.>",
    "sandherd.v1.deliver.>",
    "sandherd.v1.deliver.p1.*",
    "sandherd.v1.deliver.*.sbx-1",
    "sandherd.v1.output.>",
    "sandherd.v1.output.*.*",
    "sandherd.v1.output.p1.*",
    "sandherd.v1.artifact.>",
    "sandherd.v1.artifact.p1.sbx-1.*",
    "sandherd.v1.dead.>",
    "sandherd.live.>",
    "sandherd.live.sandherd.v1.output.>",
    "_INBOX.>",
    "*.*.>",
    "$JS.>",
    "$JS.API.>",
    "$JS.ACK.>",
    "$JS.EVENT.ADVISORY.>",
    "$KV.>",
    "$SYS.>",
)
"""Wildcard subscriptions: permitted only to principals that may receive every covered subject."""


def covers(pattern: str, subject: str) -> bool:
    want, have = pattern.split("."), subject.split(".")
    if want[-1] == ">":
        return len(have) >= len(want) and all(w in {"*", h} for w, h in zip(want[:-1], have, strict=False))
    return len(want) == len(have) and all(w in {"*", h} for w, h in zip(want, have, strict=True))


def received_by(principal: Principal) -> dict[str, bool]:
    """Each single subject, and whether this principal may subscribe to it."""
    table = {subject: may_receive(principal, row, tokens) for row in TABLE for subject, tokens in subjects(row)}
    live = dict.fromkeys((f"sandherd.live.{subject}" for subject in table), False)
    for row in TABLE:
        for subject, _ in subjects(row):
            live[f"sandherd.live.{subject}"] = principal in LIVE and row.kind is Kind.EVENT
    return dict.fromkeys(BROKERS_OWN, False) | table | live


# --- the tests ---------------------------------------------------------------------------------------------------


async def test_each_principal_publishes_what_the_table_permits(speakers: list[Publisher]) -> None:
    """No principal can publish to a subject beyond the tables, and none of the permitted ones is missing."""
    for publisher in speakers:
        expected = {
            subject: may_publish(publisher.principal, row, tokens) for row in TABLE for subject, tokens in subjects(row)
        } | {subject: publisher.principal in allowed for subject, allowed in BROKERS_OWN.items()}
        expected |= dict.fromkeys(MALFORMED, False)
        for subject in expected:
            await publisher.bus.client.publish(subject, b"")
        refused = await publisher.refused("publish")
        assert_same(publisher, expected, {subject: subject.lower() not in refused for subject in expected})


async def test_each_principal_subscribes_to_what_the_table_permits(speakers: list[Publisher]) -> None:
    """No principal can subscribe beyond the table: to no other inbox, reply, delivery or output."""
    for publisher in speakers:
        inbox = f"{publisher.bus.client._inbox_prefix.decode()}.abc.1"
        expected = received_by(publisher.principal) | {inbox: True}
        await listen_to(publisher, expected)
        refused = await publisher.refused("subscription")
        assert_same(publisher, expected, {subject: subject.lower() not in refused for subject in expected})


async def test_wildcard_permits_no_more_than_its_subjects(speakers: list[Publisher]) -> None:
    """A wildcard subscription is accepted only from a principal that may subscribe to all of its subjects."""
    for publisher in speakers:
        received = received_by(publisher.principal)
        await listen_to(publisher, WILDCARDS)
        refused = await publisher.refused("subscription")
        for pattern in WILDCARDS:
            covered = [subject for subject in received if covers(pattern, subject)]
            all_own = bool(covered) and all(received[subject] for subject in covered)
            assert pattern.lower() in refused or all_own, f"{publisher.principal} may listen to {pattern}"


IN_ONE_GO = (
    (P.CLIENT, f"sandherd.v1.event.{PROJECT}.>"),
    (P.CLIENT, f"sandherd.v1.event.{PROJECT}.{SANDBOX}.>"),
    (P.SUBSCRIBER, f"sandherd.v1.event.{PROJECT}.>"),
    (P.CLIENT, f"sandherd.v1.output.{PROJECT}.*"),
    (P.OPERATOR, "sandherd.v1.event.>"),
    (P.OPERATOR, "sandherd.v1.output.*.*"),
    (P.MESSAGE_RELAY, "sandherd.v1.event.*.*.agent.*"),
    *((service, row.pattern()) for row in TABLE if row.kind is Kind.REQUEST for service in row.consumers & SERVICES),
)


async def test_wildcards_of_services_are_permitted(speakers: list[Publisher]) -> None:
    """The wildcard subscriptions of live followers and services are accepted."""
    for publisher in speakers:
        await listen_to(publisher, [pattern for principal, pattern in IN_ONE_GO if principal is publisher.principal])
        assert await publisher.refused("subscription") == set()


async def test_system_credential_of_the_spawner_only_pushes_account_tokens(herd: Broker) -> None:
    """The credential may neither watch nor disconnect servers, and sees nothing of the herd's account."""
    claims = ["$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.CLAIMS.DELETE", "$SYS.REQ.CLAIMS.LIST", "$SYS.REQ.SERVER.PING"]
    watch = ConnectionCallbacks()
    violations: list[str] = []
    watch.violated = violations.append
    identity = ConnectionIdentity.file(herd.spawner_identity / "claims.creds")
    async with Bus.open(herd.url, name="claims", identity=identity, inbox=CLAIMS_INBOX, watch=watch) as bus:
        publisher = Publisher(P.SPAWNER, bus, violations)
        for subject in claims:
            await bus.client.publish(subject, b"")
        assert await publisher.refused("publish") == {subject.lower() for subject in claims[1:]}
        await listen_to(publisher, ["$SYS.>", "$SYS.ACCOUNT.>", "sandherd.>", "_INBOX.>", f"{CLAIMS_INBOX}.x"])
        assert len(await publisher.refused("subscription")) == 4


async def listen_to(publisher: Publisher, patterns: Iterable[str]) -> None:
    """Subscribe and unsubscribe at once: a worker may have only a few subscriptions."""
    for pattern in patterns:
        subscription = await publisher.bus.client.subscribe(pattern, cb=nothing)
        await subscription.unsubscribe()


async def nothing(_message: Msg) -> None:
    await asyncio.sleep(0)


def assert_same(publisher: Publisher, expected: dict[str, bool], found: dict[str, bool]) -> None:
    """Compare in full, because a single unexpected permission is a failure."""
    too_much = [subject for subject, allowed in found.items() if allowed and not expected[subject]]
    missing = [subject for subject, allowed in found.items() if not allowed and expected[subject]]
    assert (too_much, missing) == ([], []), f"{publisher.principal}: unexpected {too_much}, missing {missing}"
