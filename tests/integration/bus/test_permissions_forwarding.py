"""Messages that the broker publishes for a principal do not reach subjects that the principal may not publish to.

The broker checks neither the reply subject of a message nor the subjects in the body of a request. Therefore every
principal outside of the account of the streams makes every request that makes the broker publish, with every kind of
subject as the reply. Afterwards no stream has anything new, and no other account has received anything. The spawner is
left out: its credential is in the account of the streams, and is trusted with them (docs/security.md).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import nats.errors
import pytest
from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.auth.account_names import Account, account_of
from sandherd.bus.auth.permissions import Permissions, for_service, for_user, joiner_template, worker_template
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import Key, KeyKind, claims, credentials_text, write_secret
from sandherd.bus.identity.keys import sign_claims
from sandherd.contracts.streams import BUCKETS, STREAMS
from sandherd.contracts.subjects import TABLE, Principal, covers
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

P = Principal
OUTSIDE = [principal for principal in Principal if account_of(principal) is not Account.HERD]
CONFINED = [P.EVENT_INGEST, P.MONITOR, P.MESSAGE_RELAY]
OWN = {"project": "p1", "sandbox": "sbx-1", "entity": "sbx-1", "artifact": "art-1", "action": "message"}
OTHER = {"project": "p2", "sandbox": "sbx-2", "entity": "sbx-2", "artifact": "art-2", "action": "message"}
TAG = "Test-Published"
"""A header of messages that are published here; what the broker publishes itself, or reads from a stream, has none."""
SUBMIT = "sandherd.v1.command.spawner.submit_task.alpha"
ALL_STREAMS = [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]


def concrete(pattern: str) -> str:
    """One subject that matches a pattern."""
    return pattern.replace("*", "x").replace(">", "x.y")


def targets() -> Iterator[str]:
    """One subject of each kind to which an attacker could want the broker to publish."""
    for row in TABLE:
        yield concrete(row.pattern(OTHER))
        yield concrete(row.pattern(OWN))
    for bucket in BUCKETS:
        yield f"$KV.{bucket.name}.forged"
        yield from (f"$KV.{bucket.name}.{service}.forged" for service in CONFINED if len(bucket.owners) > 1)
    for prefix in (API, API_FROM_OUTSIDE):
        yield f"{prefix}.CONSUMER.CREATE.KV_tasks.thief"
        yield f"{prefix}.STREAM.PURGE.EVENTS"
        yield f"{prefix}.STREAM.MSG.DELETE.INBOX"
        yield f"{prefix}.STREAM.UPDATE.EVENTS"
        yield f"{prefix}.CONSUMER.MSG.NEXT.COMMANDS.spawner-commands"
        yield f"{prefix}.DIRECT.GET.KV_tasks"
    # An acknowledgement's subject is no target: the server itself refuses it as a reply.
    yield "sandherd.live.sandherd.v1.event.p2.sbx-2.agent.message"
    yield from (f"_INBOX_{name}.x" for name in ("spawner", "event-ingest", "monitor", "message-relay", "sbx-2"))
    yield "_INBOX_gateway.x"


def bodies(subject: str) -> list[str]:
    """The possible bodies of a request on this subject, in each form that the server answers."""
    if ".DIRECT.GET." in subject and subject.count(".") - subject.count("$JS.herd.") <= 4:
        return [
            '{"seq": 1}',
            '{"seq": 1, "batch": 3, "next_by_subj": ">"}',
            '{"multi_last": [">"], "batch": 3}',
        ]
    if ".MSG.GET." in subject or ".MSG.DELETE." in subject:
        return ['{"seq": 1}'] if ".GET." in subject else ['{"seq": 999999}']
    if ".MSG.NEXT." in subject:
        return ['{"batch": 2, "no_wait": true}', '{"batch": 1, "expires": 100000000}']
    return ["", "{}"]


def permissions_of(principal: Principal) -> Permissions:
    if principal in {*CONFINED, P.GATEWAY}:
        return for_service(principal)
    if principal in {P.WORKER, P.JOINER}:
        template = worker_template() if principal is P.WORKER else joiner_template()
        filled = [text.replace("{{tag(project)}}", "p1").replace("{{name()}}", "sbx-1") for text in template.publish]
        return Permissions(publish=tuple(filled), subscribe=())
    return for_user(principal, "p1", "UABC")


async def seed(herd: Broker) -> None:
    """Store a few messages in every stream, so that there is something to deliver."""
    async with (
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as worker,
        herd.bus(P.SPAWNER) as spawner,
        herd.bus(P.MESSAGE_RELAY) as relay,
        herd.bus(P.MONITOR) as monitor,
    ):
        for number in range(6):
            for action in ("message", "message_sent", "completed"):
                subject = f"sandherd.v1.event.p1.sbx-1.agent.{action}"
                await worker.publish(subject, b"SEEDED", msg_id=f"{action}{number}")
            await worker.publish("sandherd.v1.output.p1.sbx-1", b"SEEDED", msg_id=f"o{number}")
            await worker.publish("sandherd.v1.artifact.p1.sbx-1.art-1", b"SEEDED", msg_id=f"a{number}")
            await spawner.publish("$KV.tasks.p1.task-1", b"SECRET", msg_id=f"k{number}")
            await spawner.publish("$KV.sandboxes.p1.sbx-1", b"SECRET", msg_id=f"s{number}")
            await relay.publish("sandherd.v1.inbox.p1.sbx-1", b"SEEDED", msg_id=f"i{number}")
            await relay.publish("sandherd.v1.dead.message-relay.internal", b"SEEDED", msg_id=f"d{number}")
            await relay.publish("$KV.approvals.p1.x", b"SEEDED", msg_id=f"p{number}")
            await monitor.publish("$KV.monitor.forge", b"SEEDED", msg_id=f"m{number}")
            await monitor.publish("sandherd.v1.command.message-relay.send_message.p1", b"{}", msg_id=f"c{number}")


async def contents(herd: Broker) -> dict[str, tuple[int, int]]:
    """The last sequence of each stream, and the number of its consumers."""
    async with herd.provisioner() as jetstream:
        found = {}
        for name in ALL_STREAMS:
            state = (await jetstream.stream_info(name)).state
            found[name] = (state.last_seq, state.consumer_count)
        return found


@asynccontextmanager
async def listening(herd: Broker, attacker: Principal) -> AsyncIterator[list[tuple[str, str]]]:
    """A user in every other account who subscribes to all that is allowed; yields what was not published here."""
    received: list[tuple[str, str]] = []

    def receiver(principal: Principal) -> Callable[[Msg], object]:
        async def receive(msg: Msg) -> None:
            if TAG not in (msg.headers or {}):
                received.append((principal, msg.subject))

        return receive

    async with AsyncExitStack() as stack:
        for principal in (P.SPAWNER, *CONFINED, P.OPERATOR, P.WORKER):
            if account_of(principal) is not account_of(attacker):
                bus = await stack.enter_async_context(herd.bus(principal, project="p2", sandbox="sbx-2"))
                for pattern in received_by(principal):
                    await bus.client.subscribe(pattern, cb=receiver(principal))  # type: ignore[arg-type]  # a coroutine
                await bus.flush()
        yield received


def received_by(principal: Principal) -> list[str]:
    """The subscriptions of a principal of project p2."""
    if principal is P.WORKER:
        return [*(row.pattern(OTHER) for row in TABLE if P.WORKER in row.consumers), "_INBOX_sbx-2.>"]
    if principal is P.OPERATOR:
        return ["sandherd.v1.event.>", "sandherd.v1.output.*.*"]
    return list(for_service(principal).subscribe)


async def publish_all(bus: Bus, subjects: list[str], replies: list[str]) -> dict[str, int]:
    """Send each request with each reply subject. Returns the number of publishes to each subject."""
    count = dict.fromkeys(subjects, 0)
    for subject in subjects:
        for body in bodies(subject):
            for reply in replies:
                headers = {TAG: "1", "Nats-Msg-Id": f"{subject}-{reply}-{body}"}
                await bus.client.publish(subject, body.encode(), reply=reply, headers=headers)
                count[subject] += 1
        await bus.flush(timeout=PATIENCE)
    return count


def stored_in(subject: str) -> str | None:
    """The stream that stores messages of a subject."""
    if subject.startswith("$KV."):
        return f"KV_{subject.split('.')[1]}"
    return next((stream.name for stream in STREAMS for pattern in stream.subjects if covers(pattern, subject)), None)


async def acknowledged_with(bus: Bus, principal: Principal, replies: list[str]) -> None:
    """Pull messages of the principal's own consumers, and request the next with each kind of acknowledgement."""
    mine = [text for text in for_service(principal).publish if ".MSG.NEXT." in text] if principal in CONFINED else []
    for subject in mine:
        for reply in replies:
            try:
                body = json.dumps({"batch": 1, "expires": 200_000_000}).encode()
                # nats-py's usual requests do not recognise a delivered message as the reply, as it has its own subject.
                message = await bus.client.request(subject, body, timeout=PATIENCE, old_style=True)
            except nats.errors.NoRespondersError:
                break
            if not message.reply.startswith("$JS.ACK"):  # a status: the consumer has no more messages
                break
            await bus.client.publish(message.reply, b'+NXT {"batch": 2, "no_wait": true}', reply=reply)
    await bus.flush(timeout=PATIENCE)


async def until_stored(herd: Broker, expected: dict[str, int]) -> None:
    """Wait until the streams have stored what was published without an acknowledgement, which takes a while."""
    async with asyncio.timeout(PATIENCE):
        while any(sequence < expected.get(name, 0) for name, (sequence, _) in (await contents(herd)).items()):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("principal", OUTSIDE)
async def test_broker_replies_stay_in_the_account_of_their_principal(herd: Broker, principal: Principal) -> None:
    """For every request and reply subject, no other account receives a reply and no stream stores it."""
    await seed(herd)
    replies = list(dict.fromkeys(targets()))
    subjects = [concrete(pattern) for pattern in permissions_of(principal).publish if "$JS.ACK" not in pattern]
    before = await contents(herd)
    async with (
        listening(herd, principal) as received,
        herd.bus(principal, project="p1", sandbox="sbx-1") as bus,
    ):
        counts = await publish_all(bus, subjects, replies)
        await acknowledged_with(bus, principal, replies[:20])
        expected = {name: sequence for name, (sequence, _) in before.items()}
        for subject, count in counts.items():
            if stream := stored_in(subject):
                expected[stream] += count
        limited = {"INBOX"}  # it takes a number of messages for one sandbox and refuses the rest
        await until_stored(herd, {name: sequence for name, sequence in expected.items() if name not in limited})
        await bus.flush(timeout=PATIENCE)
        after = await contents(herd)
        for name, sequence in expected.items():
            assert after[name][0] <= sequence, name
        assert {name: count for name, (_, count) in after.items()} == {name: n for name, (_, n) in before.items()}
        await bus.flush(timeout=PATIENCE)
        assert received == []


def attacks(service: Principal) -> list[tuple[str, str, bytes]]:
    """Ways to make the broker submit a task: subject and body, with the command's subject as the reply."""
    event = "sandherd.v1.dead." + service.value + ".internal"
    found = [("publish", event, b"{}"), ("lease", f"$KV.leases.{service}.x", b"{}")]
    for pattern in for_service(service).publish:
        if any(word in pattern for word in (".DIRECT.GET.", ".MSG.GET.", ".MSG.NEXT.", ".INFO.")):
            subject = concrete(pattern).replace("x.y", "$KV.leases.spawner.forged")
            found += [(pattern, subject, body.encode()) for body in bodies(subject)]
    return found


@pytest.mark.parametrize("service", CONFINED)
async def test_service_cannot_make_the_broker_submit_a_task(herd: Broker, service: Principal) -> None:
    """The attack `service_escalate` and its variants store no command, whichever request carries the reply."""
    await seed(herd)
    before = (await contents(herd))["COMMANDS"]
    async with herd.bus(service) as bus:
        for _, subject, body in attacks(service):
            await bus.client.publish(subject, body, reply=SUBMIT)
        await bus.flush()
        assert (await contents(herd))["COMMANDS"] == before


FOREIGN = {P.EVENT_INGEST: "tasks", P.MONITOR: "tasks", P.MESSAGE_RELAY: "secret_keys", P.GATEWAY: "tasks"}
"""A bucket of the spawner that the service may not read; by the matrix message-relay may read the tasks."""


def thefts(bucket: str, target: str) -> Iterator[tuple[str, dict[str, object]]]:
    """Ways to get another service's records delivered: a consumer, a snapshot, a republishing stream."""
    stream = f"KV_{bucket}"
    consumer: dict[str, object] = {
        "stream_name": stream,
        "config": {"name": "thief", "deliver_subject": target, "ack_policy": "none"},
    }
    unnamed: dict[str, object] = {
        "stream_name": stream,
        "config": {"deliver_subject": target, "ack_policy": "none"},
    }
    config: dict[str, object] = {
        "name": stream,
        "subjects": [f"$KV.{bucket}.>"],
        "republish": {"src": ">", "dest": target},
    }
    mirror: dict[str, object] = {
        "name": "THIEF",
        "mirror": {"name": stream},
        "republish": {"src": ">", "dest": target},
    }
    for prefix in (API, API_FROM_OUTSIDE):
        yield f"{prefix}.CONSUMER.CREATE.{stream}.thief", consumer
        yield f"{prefix}.CONSUMER.CREATE.{stream}.thief.$KV.{bucket}.>", consumer
        yield f"{prefix}.CONSUMER.CREATE.{stream}", unnamed
        yield f"{prefix}.CONSUMER.DURABLE.CREATE.{stream}.thief", consumer
        yield f"{prefix}.STREAM.SNAPSHOT.{stream}", {"deliver_subject": target, "chunk_size": 1024}
        yield f"{prefix}.STREAM.UPDATE.{stream}", config
        yield f"{prefix}.STREAM.CREATE.THIEF", mirror
        yield f"{prefix}.DIRECT.GET.{stream}", {"multi_last": [">"], "batch": 100}


def own_state(service: Principal) -> str:
    """A subject that the service may write, in a bucket that it may read by a request."""
    readable = {text for text in for_service(service).publish if ".DIRECT.GET.KV_" in text}
    owned = (text for text in for_service(service).publish if text.startswith("$KV."))
    return next(concrete(text) for text in owned if any(f".KV_{text.split('.')[1]}." in one for one in readable))


async def steal(bus: Bus, service: Principal, target: str) -> int:
    """Try each theft directly, and as the service's own state read with the API as the reply; returns the number."""
    state, count = own_state(service), 0
    for subject, body in thefts(FOREIGN[service], target):
        document = json.dumps(body).encode()
        await bus.client.publish(subject, document, reply=f"_INBOX_{service}.answer", headers={TAG: "1"})
        await bus.client.publish(state, document, headers={TAG: "1"})
        read = f"{API_FROM_OUTSIDE}.DIRECT.GET.{stored_in(state)}.{state}"
        await bus.client.publish(read, b"", reply=subject, headers={TAG: "1"})
        count += 1
    await bus.flush(timeout=PATIENCE)
    return count


@pytest.mark.parametrize("service", CONFINED)
async def test_service_cannot_have_task_records_delivered(herd: Broker, service: Principal) -> None:
    """The attack `service_steal` and its variants get nothing with any kind of deliver and republish subject.

    Directly and through a reply subject nothing arrives, no other account receives anything, and no stream has more
    than was published to it.
    """
    await seed(herd)
    stolen: list[bytes] = []
    record = f"$KV.{FOREIGN[service]}.p1.task-2"
    async with herd.bus(P.SPAWNER) as spawner:  # not beside the one that listens, which would get its reply
        await spawner.publish(record, b"SECRET", msg_id="earlier")

    async def receive(msg: Msg) -> None:
        if b"SECRET" in msg.data:
            stolen.append(msg.data)

    async with listening(herd, service) as received, herd.bus(service) as bus, herd.bus(P.SPAWNER) as spawner:
        await bus.client.subscribe(f"_INBOX_{service}.>", cb=receive)
        before, count = await contents(herd), 0
        for target in dict.fromkeys((f"_INBOX_{service}.stolen", *targets())):
            count += await steal(bus, service, target)
        await spawner.client.publish(record, b"SECRET", headers={TAG: "1"})
        await spawner.flush()
        expected = {name: sequence for name, (sequence, _) in before.items()}
        expected[str(stored_in(own_state(service)))] += count
        expected[str(stored_in(record))] += 1
        await until_stored(herd, expected)
        await bus.flush(timeout=PATIENCE)
        after = await contents(herd)
    assert stolen == []
    assert received == []
    assert after == {name: (sequence, before[name][1]) for name, sequence in expected.items()}


async def test_same_theft_succeeds_for_a_service_with_access_to_the_streams(herd: Broker) -> None:
    """The spawner, to which it is permitted, gets the records by one of the attack's requests."""
    await seed(herd)
    stolen: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive(msg: Msg) -> None:
        await stolen.put(msg.data)

    async with herd.bus(P.SPAWNER) as bus:
        await bus.client.subscribe("_INBOX_spawner.stolen", cb=receive)
        for subject, body in thefts("tasks", "_INBOX_spawner.stolen"):
            await bus.client.publish(subject, json.dumps(body).encode(), reply="_INBOX_spawner.answer")
        async with asyncio.timeout(PATIENCE):
            assert await stolen.get() == b"SECRET"


async def test_same_attack_succeeds_within_the_account_of_the_streams(herd: Broker) -> None:
    """With the credential of version 0.1, which permits it, the command of the attack is stored."""
    rights = Permissions(publish=("$KV.monitor.>", f"{API}.DIRECT.GET.KV_monitor.>"), subscribe=("_INBOX_monitor.>",))
    key = Key.new(KeyKind.USER)
    account = herd.identity.root_key("herd").public
    body = claims.user(key.public, name="monitor", account=account, principal=P.MONITOR, permissions=rights)
    path = herd.home / "creds" / "before.creds"
    write_secret(path, credentials_text(sign_claims(body, herd.identity.root_key("streams-signing"), 1), key.seed))
    before = (await contents(herd))["COMMANDS"][0]
    async with Bus.open(
        herd.url, name="x", identity=ConnectionIdentity.file(path), inbox="_INBOX_monitor", connect_timeout=PATIENCE
    ) as bus:
        await bus.client.publish("$KV.monitor.forge", b"{}")
        await bus.client.publish(f"{API}.DIRECT.GET.KV_monitor.$KV.monitor.forge", b"", reply=SUBMIT)
        await bus.flush()
        async with asyncio.timeout(PATIENCE):
            while (await contents(herd))["COMMANDS"][0] == before:
                await asyncio.sleep(0.01)


async def test_credential_from_before_service_accounts_is_refused(herd: Broker) -> None:
    """A credential signed for the account of the streams by the former key of services no longer connects."""
    key = Key.new(KeyKind.USER)
    account = herd.identity.root_key("herd").public
    body = claims.user(
        key.public, name="monitor", account=account, principal=P.MONITOR, permissions=for_service(P.MONITOR)
    )
    path = herd.home / "creds" / "before.creds"
    write_secret(path, credentials_text(sign_claims(body, herd.identity.root_key("services"), 1), key.seed))
    with pytest.raises(Exception, match="no broker"):
        async with Bus.open(
            herd.url, name="x", identity=ConnectionIdentity.file(path), inbox="_INBOX_monitor", connect_timeout=0
        ):
            pass
