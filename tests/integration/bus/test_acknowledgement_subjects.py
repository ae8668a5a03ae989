"""A principal acknowledges only deliveries of its own consumers, whatever form the acknowledgement's subject has."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from sandherd.bus.auth.account_names import api_of
from sandherd.bus.connection import Bus
from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.bus.test_permissions_forwarding import seed
from tests.patience import PATIENCE

P = Principal
Consumer = tuple[str, str]
"""A consumer's stream and name, which are two tokens of an acknowledgement's subject."""
BODIES = (b'+NXT {"batch": 3, "no_wait": true}', b"-NAK", b"+TERM", b"+ACK", b"", b"+WPI")
SUBSCRIPTIONS = {"p1": "sub-p1-1", "p2": "sub-p2-1"}
VICTIMS: dict[Consumer, Principal] = {
    **{(row.stream, row.name): row.service for row in CONSUMERS},
    ("EVENTS", SUBSCRIPTIONS["p2"]): P.SUBSCRIBER,
}
ATTACKERS = [
    (P.EVENT_INGEST, ("EVENTS", "event-ingest")),
    (P.MESSAGE_RELAY, ("COMMANDS", "message-relay-commands")),
    (P.MESSAGE_RELAY, ("EVENTS", "message-relay-agents")),
    (P.SUBSCRIBER, ("EVENTS", SUBSCRIPTIONS["p1"])),
]
"""The principals that have consumers and are outside of the account of the streams, each with one of its consumers."""


def old_forms(theirs: Consumer, own: Consumer) -> Iterator[str]:
    """Subjects of nine tokens for another's consumer, with one's own consumer in each possible place."""
    mine = ".".join(own)
    for rest in ("1.1.1.1.0", f"{mine}.1.1.0", f"1.{mine}.1.0", f"1.1.{mine}.0", f"1.1.1.{mine}"):
        yield f"$JS.ACK.{'.'.join(theirs)}.{rest}"


def new_forms(theirs: Consumer, own: Consumer) -> Iterator[str]:
    """Subjects of eleven and twelve tokens, whose domain or account does not exist, or is named like a consumer."""
    for begin in ("_.hash", "herd.hash", ".".join(own)):
        yield f"$JS.ACK.{begin}.{'.'.join(theirs)}.1.1.1.1.0"
        yield f"$JS.ACK.{begin}.{'.'.join(theirs)}.1.1.1.1.0.x"


async def subscribe_both(herd: Broker) -> None:
    async with herd.provisioner() as jetstream:
        for project, name in SUBSCRIPTIONS.items():
            config = ConsumerConfig(
                durable_name=name, ack_policy=AckPolicy.EXPLICIT, filter_subjects=[f"sandherd.v1.event.{project}.>"]
            )
            await jetstream.add_consumer("EVENTS", config)


async def store_messages(herd: Broker) -> None:
    """Store some messages for every consumer."""
    await seed(herd)
    async with (
        herd.bus(P.CLIENT, project="p1") as client,
        herd.bus(P.WORKER, project="p2", sandbox="sbx-2") as worker,
        herd.bus(P.WORKER, project="p1", sandbox="sbx-1") as other,
    ):
        for number in range(6):
            await client.publish("sandherd.v1.command.spawner.submit_task.p1", b"{}", msg_id=f"submit-{number}")
            await client.publish("sandherd.v1.command.monitor.mute_rule.p1", b"{}", msg_id=f"mute-{number}")
            await worker.publish("sandherd.v1.event.p2.sbx-2.agent.message", b"{}", msg_id=f"other-{number}")
            await other.publish("sandherd.v1.event.p1.sbx-1.agent.started", b"{}", msg_id=f"started-{number}")


@asynccontextmanager
async def deliveries(herd: Broker) -> AsyncIterator[dict[Consumer, tuple[Bus, Msg]]]:
    """Pull one message of each consumer without acknowledging it; returns it with its connection."""
    async with AsyncExitStack() as stack:
        found = {}
        for (stream, name), owner in VICTIMS.items():
            bus = await stack.enter_async_context(herd.bus(owner, project="p2"))
            pull = f"{api_of(owner)}.CONSUMER.MSG.NEXT.{stream}.{name}"
            # nats-py's usual requests do not recognise a delivered message as the reply, as it has its own subject.
            message = await bus.client.request(pull, b'{"batch": 1}', timeout=PATIENCE, old_style=True)
            found[stream, name] = bus, message
        yield found


async def positions(herd: Broker, delivered: dict[Consumer, tuple[Bus, Msg]]) -> dict[Consumer, Any]:
    """The position of each consumer after it has handled every acknowledgement that was sent before."""
    for bus, message in delivered.values():
        await bus.client.request(message.reply, b"+WPI", timeout=PATIENCE)
    found = {}
    async with herd.provisioner() as jetstream:
        for stream, name in delivered:
            info = await jetstream.consumer_info(stream, name)
            sent = info.delivered.consumer_seq if info.delivered else 0
            found[stream, name] = (sent, info.num_pending, info.num_ack_pending, info.num_redelivered)
    return found


@pytest.mark.parametrize(("principal", "own"), ATTACKERS, ids=[own[1] for _, own in ATTACKERS])
async def test_consumers_of_others_are_not_acknowledged(herd: Broker, principal: Principal, own: Consumer) -> None:
    """No form of the subject, with any acknowledgement, makes another's consumer deliver, skip or repeat a message.

    Each that names the other's consumer is a permission violation.
    """
    await subscribe_both(herd)
    await store_messages(herd)
    received: list[Msg] = []

    async def receive(message: Msg) -> None:
        received.append(message)

    async with deliveries(herd) as delivered, herd.bus(principal, project="p1") as bus:
        before = await positions(herd, delivered)
        inbox = bus.client.new_inbox()
        await bus.client.subscribe(inbox, cb=receive)
        refused = 0
        for theirs, owner in VICTIMS.items():
            if owner is principal is not P.SUBSCRIBER:
                continue
            for subject in [*old_forms(theirs, own), *new_forms(theirs, own)]:
                for body in BODIES:
                    await bus.client.publish(subject, body, reply=inbox)
                    refused += 1
        await bus.flush(timeout=PATIENCE)
        assert await positions(herd, delivered) == before
        await bus.flush(timeout=PATIENCE)
        assert [message.subject for message in received if message.data] == []
        assert bus.violations == refused


@pytest.mark.parametrize(("principal", "own"), ATTACKERS, ids=[own[1] for _, own in ATTACKERS])
async def test_own_consumer_named_as_another_has_no_effect(herd: Broker, principal: Principal, own: Consumer) -> None:
    """The new form for one's own consumer, with another's tokens as domain and account, acknowledges nothing."""
    await subscribe_both(herd)
    await store_messages(herd)
    async with deliveries(herd) as delivered, herd.bus(principal, project="p1") as bus:
        before = await positions(herd, delivered)
        for theirs in VICTIMS:
            for body in BODIES:
                for end in ("1.1.1.1.0", "1.1.1.1.0.x"):
                    await bus.client.publish(f"$JS.ACK.{'.'.join(theirs)}.{'.'.join(own)}.{end}", body)
        await bus.flush(timeout=PATIENCE)
        assert await positions(herd, delivered) == before
        assert bus.violations == 0
