"""Workers compute the ids of the relay's events and publish their own events with these ids first."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from message_relay.approval import digest_of
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import DerivedIds, derived_uuid
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker

pytestmark = pytest.mark.own_broker

World = Any
PROJECT = "default"
SANDBOX = "sbx-1"
NOTHING = b'{"type": "agent.waiting", "data": {}}'
MARGIN = timedelta(milliseconds=20)
"""The tolerance between the clocks of broker and worker, which are the same here."""


def own_secrets(herd: Broker) -> list[bytes]:
    """The possible keys of a worker: none, and all that its own credential contains."""
    credential = herd.credentials(Principal.WORKER, sandbox=SANDBOX)
    return [b"", credential.read_bytes()]


def guesses(herd: Broker, at: datetime, *facts: object) -> Iterable[UUID]:
    """The ids that a worker computes from its knowledge, including the code."""
    yield derived_uuid(at, *facts)
    for secret in own_secrets(herd):
        yield DerivedIds(secret).derive(at, *facts)


async def take(world: World, ids: Iterable[UUID]) -> None:
    """Publish an event of the worker with each of these message ids."""
    async with world.herd.bus(Principal.WORKER, project=PROJECT, sandbox=SANDBOX) as bus:
        for guess in ids:
            await bus.publish(f"sandherd.v1.event.{PROJECT}.{SANDBOX}.agent.waiting", NOTHING, msg_id=str(guess))


async def test_worker_cannot_suppress_the_record_of_a_decision(world: World) -> None:
    """The worker knows the approval and, within some milliseconds, the time of its request."""
    await world.record(SANDBOX)
    async with world.relay().running(), world.worker(SANDBOX):
        before = datetime.now(UTC) - MARGIN
        await world.ask(SANDBOX, "toolu_01A")
        await world.until(lambda: world.approvals["toolu_01A"] == ["requested"])
        span = (datetime.now(UTC) + MARGIN - before) // timedelta(milliseconds=1)
        source = f"/sandherd/message-relay/{SANDBOX}/{digest_of('toolu_01A')}"
        moments = [before + timedelta(milliseconds=number) for number in range(span + 1)]
        known = (PROJECT, source, 2)
        await take(world, [guess for at in moments for guess in guesses(world.herd, at, *known)])
        answer = await world.decide(SANDBOX, "toolu_01A", True)
        await world.until_published(answer, "acknowledged")
        recorded = (await world.stored("approval_id"))["toolu_01A"]
    assert [event["type"] for event in recorded] == ["approval.requested", "approval.granted"]


async def test_worker_cannot_suppress_the_record_of_a_delivery(world: World) -> None:
    """The delivery has the message and its time, to the microsecond; the worker delays its receipt."""
    await world.record(SANDBOX)
    async with world.relay().running():
        sent = await world.send(SANDBOX)
        handed: list[InboxMessage] = []

        def keep(message: InboxMessage) -> None:
            handed.append(message)

        worker = world.new_worker(SANDBOX)
        worker.answers = keep
        async with world.worker(SANDBOX, worker):
            await world.until(lambda: bool(handed))
            message = handed[0]
            source = f"/sandherd/message-relay/{sent}"
            known = [(PROJECT, *more, source, number) for number in (2, 3) for more in ((), (SANDBOX,))]
            await take(world, [guess for facts in known for guess in guesses(world.herd, message.sent_at, *facts)])
            worker.answers = worker.acknowledge
            await world.until(lambda: bool(worker.received) and len(worker.handed) > 1)
            after = await world.send(SANDBOX)
            await world.until_published(after, "acknowledged")
        steps = [event["type"] for event in (await world.stored())[sent]]
    assert steps == ["message.queued", "message.delivered", "message.acknowledged"]
