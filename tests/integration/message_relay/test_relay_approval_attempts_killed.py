"""A relay is killed anywhere while an approval passes to the next attempt: the approval passes once."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.bus.consumers.consumer import Delivery, Retry
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.envelope import wrap
from sandherd.contracts.subjects import Principal, command_subject, event_subject
from tests.integration.message_relay.dying_relay import Killed, Relay

World = Any
KEY = ("default", "sbx-1")
HANDED = (
    *("knock", "note that it is handed over", "hand over", "say delivered", "say acknowledged"),
    *("note that it was used", "let go of the question", "remove"),
)
TAKEN = ("write", "say requested", "take the place")
ANSWERED = (*TAKEN, "inherit", "say granted", "note that", "lead", *HANDED)
PENDING = (
    *(*TAKEN, "say expired", "note that", "lead"),
    *("claim", "decide", "say granted", "note that it is", "keep", "say queued", *HANDED),
)
WITHDRAWN = ("write", "say requested", "lead", "withdraw", "say expired", "let go of the question", "note that")
DELIVERED = ["message.queued", "message.delivered", "message.acknowledged"]
ENDLESS = 1000


async def live(world: World, acts: int, *does: Callable[[Relay], Awaitable[Any]]) -> int:
    """Run a relay that is killed before act number `acts`. Returns how many it has done."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        relay = Relay(bus, acts)
        try:
            for what in does:
                assert not isinstance(await what(relay), Retry)
        except Killed:
            return acts
        return acts - relay.acts_left


def receives(event: Any) -> Callable[[Relay], Awaitable[Any]]:
    subject = event_subject("default", event.subject, event.type)
    delivery = Delivery(subject, event.to_json(), "EVENTS", 1, 1, event.time)
    return lambda relay: relay.answering.handle(delivery)


def receives_withdrawn(event: Any) -> Callable[[Relay], Awaitable[Any]]:
    subject = event_subject("default", event.subject, event.type)
    delivery = Delivery(subject, event.to_json(), "EVENTS", 2, 1, event.time)
    return lambda relay: relay.answering.withdraw(delivery)


def takes(answer: AnswerApproval, at: datetime, deliveries: int = 1) -> Callable[[Relay], Awaitable[Any]]:
    source, kind = "/sandherd/client/x", answer.type
    command = wrap(answer, kind, source=source, sequence=1, project="default", subject=answer.sandbox, time=at)
    delivery = Delivery(command_subject(kind, "default"), command.to_json(), "COMMANDS", 1, deliveries, at)
    return lambda relay: relay.taking.handle(delivery)


def drains(relay: Relay) -> Awaitable[Any]:
    return relay.pump.drain(KEY)


def looks(relay: Relay) -> Awaitable[Any]:
    return relay.lapsing.expire_due()


async def published(world: World, approval: str) -> list[str]:
    events = (await world.stored("approval_id")).get(approval, [])
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    return [event["type"].removeprefix("approval.") for event in events]


async def is_requested_again(world: World) -> None:
    """Check that the attempt after that sends the same request, and has no decision."""
    await world.lose(2)
    await world.attempt(3)
    await live(world, ENDLESS, receives(await world.ask("sbx-3", "a3")), looks, drains)
    assert await published(world, "a3") == ["requested"]


def answer() -> AnswerApproval:
    return AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True, answered_by="ada")


async def lost_with_a_question(world: World) -> None:
    await world.attempt(1)
    await live(world, ENDLESS, receives(await world.ask("sbx-1", "a1")))
    await world.lose(1)


@pytest.mark.parametrize("killed_at", [*range(len(ANSWERED)), None], ids=[*ANSWERED, "not at all"])
async def test_decision_between_attempts_is_delivered_once(world: World, killed_at: int | None) -> None:
    """Killed before each act, the relay delivers it once, publishes each event once, and marks it as used."""
    await lost_with_a_question(world)
    await live(world, ENDLESS, takes(answer(), datetime.now(UTC)), drains, looks)
    await world.attempt(2)
    event = await world.ask("sbx-2", "a2")
    async with world.worker("sbx-2") as worker:
        done = await live(world, ENDLESS if killed_at is None else killed_at, receives(event), drains)
        await live(world, ENDLESS, receives(event), looks, drains)
        assert len(worker.received) == 1
    assert killed_at is not None or done == len(ANSWERED)
    assert await published(world, "a1") == await published(world, "a2") == ["requested", "granted"]
    assert [event["type"] for event in (await world.stored())["msg-1"]] == DELIVERED
    assert await world.inbox_size() == 0
    await is_requested_again(world)


@pytest.mark.parametrize("killed_at", [*range(len(PENDING)), None], ids=[*PENDING, "not at all"])
async def test_decision_on_a_repeated_question_is_delivered_once(world: World, killed_at: int | None) -> None:
    """The second request replaces the first, which is decided, whatever act the kill precedes."""
    await lost_with_a_question(world)
    await world.attempt(2)
    event, at = await world.ask("sbx-2", "a2"), datetime.now(UTC)
    async with world.worker("sbx-2") as worker:
        acts = ENDLESS if killed_at is None else killed_at
        done = await live(world, acts, receives(event), takes(answer(), at), drains)
        await live(world, ENDLESS, looks, receives(event), takes(answer(), at, 2), looks, drains)
        assert len(worker.received) == 1
    assert killed_at is not None or done == len(PENDING)
    assert await published(world, "a1") == ["requested", "expired"]
    assert await published(world, "a2") == ["requested", "granted"]
    assert [event["type"] for event in (await world.stored())["msg-1"]] == DELIVERED
    assert await world.inbox_size() == 0
    await is_requested_again(world)


@pytest.mark.parametrize("killed_at", [*range(len(WITHDRAWN)), None], ids=[*WITHDRAWN, "not at all"])
async def test_withdrawal_survives_a_kill_before_any_act(world: World, killed_at: int | None) -> None:
    """Requested and expired are each published once, and the next attempt's request is new."""
    await world.attempt(1)
    event, withdrawn = await world.ask("sbx-1", "a1"), await world.withdraw("sbx-1", "a1")
    acts = ENDLESS if killed_at is None else killed_at
    done = await live(world, acts, receives(event), receives_withdrawn(withdrawn))
    await live(world, ENDLESS, receives(event), receives_withdrawn(withdrawn), looks)
    assert killed_at is not None or done == len(WITHDRAWN)
    assert await published(world, "a1") == ["requested", "expired"]
    await world.lose(1)
    await world.attempt(2)
    await live(world, ENDLESS, receives(await world.ask("sbx-2", "a2")), looks)
    assert await published(world, "a2") == ["requested"]


async def test_two_relays_take_over_one_question_once(world: World) -> None:
    """Of two equal, concurrent requests of the next attempt one gets the decision, and one waits."""
    await lost_with_a_question(world)
    await live(world, ENDLESS, takes(answer(), datetime.now(UTC)), drains)
    await world.attempt(2)
    events = [await world.ask("sbx-2", name) for name in ("a2", "a3")]
    async with world.relay().running(), world.relay().running(), world.worker("sbx-2") as worker:
        await world.until(lambda: sorted(map(len, (world.approvals["a2"], world.approvals["a3"]))) == [1, 2])
        await world.until_published("msg-1", "acknowledged")
        await live(world, ENDLESS, *map(receives, events), looks)
    assert len(worker.received) == 1
    assert sorted([await published(world, "a2"), await published(world, "a3")]) == [
        ["requested"],
        ["requested", "granted"],
    ]
