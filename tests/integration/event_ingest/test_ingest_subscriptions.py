"""Durable subscriptions on a real broker: what each retains, how it is requested, and who gets none of it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sandherd.bus.api_subjects import API_FROM_OUTSIDE
from sandherd.bus.connection import BusError, NoResponderError, RefusedError
from sandherd.bus.consumers.pull import Puller
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import ListSubscriptions, Subscribe, Subscription, Unsubscribe
from sandherd.contracts.subjects import Principal, command_subject, event_subject
from tests.patience import PATIENCE
from tests.polling import eventually

CREATE = "$JS.API.CONSUMER.CREATE.EVENTS"


async def take(
    world: Any, subscription: Subscription, count: int, *, project: str = "p1", ack: bool = True
) -> list[Any]:
    """Take this number of events of a subscription as documents, with a subscriber's credential."""
    bus = await world.bus(Principal.SUBSCRIBER, project=project)
    puller = Puller(bus, subscription.stream, subscription.consumer, 8, api=API_FROM_OUTSIDE)
    await puller.bind()
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            for message in await puller.next_batch(8):
                found.append(json.loads(message.data))
                if ack:
                    await message.ack_sync(timeout=PATIENCE)
    await puller.unbind()
    await bus.flush()  # events that are published from now on are not sent here any more

    async def is_forgotten() -> bool:
        async with world.broker.provisioner() as jetstream:
            return not (await jetstream.consumer_info(subscription.stream, subscription.consumer)).num_waiting

    await eventually(is_forgotten, "the broker sends no event for the requests that were open")
    return found


def words(documents: list[Any]) -> list[str]:
    return [document["data"]["content"] for document in documents]


async def subscriptions(world: Any, project: str = "p1") -> dict[str, Subscription]:
    bus = await world.bus(Principal.SUBSCRIBER, project=project)
    return {one.name: one for one in (await bus.ask(ListSubscriptions(), project)).subscriptions}


async def waits(world: Any, name: str, count: int) -> None:
    """Wait until this number of events is pending: the broker counts them shortly after its acknowledgement."""
    async with asyncio.timeout(PATIENCE):
        while (await subscriptions(world))[name].waiting != count:
            await asyncio.sleep(0.02)


async def subscribe(world: Any, name: str = "alerts", *, project: str = "p1", **more: Any) -> Subscription:
    bus = await world.bus(Principal.SUBSCRIBER, project=project)
    found: Subscription = await bus.ask(Subscribe(name=name, **more), project)
    return found


@pytest.fixture
async def several(world: Any) -> AsyncIterator[Any]:
    """Two replicas of the service."""
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(world.service().running())
        yield world


async def test_events_are_retained_until_acknowledged(running: Any, script: Any) -> None:
    """Each event of the project comes once and in order, also if there was no reader; no other project's comes."""
    own = script.messages("sbx-1", 12, project="p1")
    others = script.messages("sbx-2", 5, project="p2")
    made = await subscribe(running)
    for event in [*own[:6], *others]:
        await running.emit([event])
    assert words(await take(running, made, 6)) == [f"word {place}" for place in range(6)]
    for event in own[6:]:
        await running.emit([event])
    await waits(running, "alerts", 6)
    taken = await take(running, made, 6)
    assert words(taken) == [f"word {place}" for place in range(6, 12)]
    assert {document["project"] for document in taken} == {"p1"}
    left = (await subscriptions(running))["alerts"]
    assert (left.waiting, left.unacknowledged) == (0, 0)


async def test_subscription_starts_at_its_position(running: Any, script: Any) -> None:
    """`all` yields what the stream still has, a number yields what follows it, `new` nothing earlier."""
    for event in script.messages("sbx-1", 4, project="p1"):
        await running.emit([event])
    everything, later = await subscribe(running, "all", start="all"), await subscribe(running, "later", start=3)
    new = await subscribe(running, "new")
    assert words(await take(running, everything, 4)) == ["word 0", "word 1", "word 2", "word 3"]
    assert words(await take(running, later, 2)) == ["word 2", "word 3"]
    assert new.waiting == 0


async def test_subscription_selects_types_and_domains(running: Any, script: Any) -> None:
    """Only the named types, or all types of a domain, are delivered, each event once."""
    types = ["task", "task.failed", "sandbox.terminated"]
    made = await subscribe(running, types=types, start="all")
    assert made.types == ["sandbox.terminated", "task"]
    for event in [*script.life("task-1", "sbx-1", project="p1"), *script.messages("sbx-1", 3, project="p1")]:
        await running.emit([event])
    found = [document["type"] for document in await take(running, made, 5)]
    assert found == ["task.submitted", "task.assigned", "task.running", "task.completed", "sandbox.terminated"]
    with pytest.raises(RefusedError) as refused:
        await subscribe(running, "other", types=["agent.tool_used"])
    assert (refused.value.problem.code, refused.value.problem.field) == (Code.INVALID_FIELD, "types.0")


async def test_repeated_subscribe_is_idempotent(running: Any, script: Any) -> None:
    """The position stays, whatever start is given; with other types the name is refused."""
    made = await subscribe(running)
    await running.emit(script.messages("sbx-1", 1, project="p1"))
    await waits(running, "alerts", 1)
    again = await subscribe(running, start="all")
    assert (again.consumer, again.created_at, again.waiting) == (made.consumer, made.created_at, 1)
    with pytest.raises(RefusedError) as refused:
        await subscribe(running, types=["task"])
    assert refused.value.problem.code is Code.CONFLICT
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    assert (await bus.ask(Unsubscribe(name="alerts"), "p1")).waiting == 1
    assert await subscriptions(running) == {}
    with pytest.raises(RefusedError) as refused:
        await bus.ask(Unsubscribe(name="alerts"), "p1")
    assert refused.value.problem.code is Code.NOT_FOUND
    assert (await subscribe(running, types=["task"])).types == ["task"]


async def test_subscriptions_are_limited_per_project(world: Any) -> None:
    """A subscription over the limit is refused with the remedy; another project's is not; a deletion frees a place."""
    async with world.service(subscriptions_per_project=3).running():
        for place in range(3):
            await subscribe(world, f"n-{place}")
        with pytest.raises(RefusedError) as refused:
            await subscribe(world, "one-more")
        assert refused.value.problem.code is Code.REFUSED
        assert "3" in refused.value.problem.message
        await subscribe(world, "n-1")  # it exists
        await subscribe(world, "one-more", project="p2")
        bus = await world.bus(Principal.SUBSCRIBER, project="p1")
        await bus.ask(Unsubscribe(name="n-1"), "p1")
        await subscribe(world, "one-more")
        assert sorted(await subscriptions(world)) == ["n-0", "n-2", "one-more"]


async def test_all_sixteen_places_are_a_subscribers_to_take_from(world: Any, script: Any) -> None:
    """Whatever their names are, all sixteen subscriptions get a consumer that the project's credential may use."""
    async with world.service(subscriptions_per_project=16).running():
        made = [await subscribe(world, f"copy-{place}") for place in range(16)]
        assert len({one.consumer for one in made}) == 16
        await world.emit(script.messages("sbx-1", 1, project="p1"))
        for one in made:
            assert words(await take(world, one, 1)) == ["word 0"]


async def test_concurrent_subscribes_create_one_consumer_each(several: Any) -> None:
    """Requests of one name to two replicas get the same consumer, and two names never the same."""
    for round_ in range(4):
        names = [f"same-{round_}", f"same-{round_}", f"other-{round_}"]
        made = await asyncio.gather(*[subscribe(several, name) for name in names])
        assert made[0].consumer == made[1].consumer != made[2].consumer
    assert len(await subscriptions(several)) == 8
    assert len({one.consumer for one in (await subscriptions(several)).values()}) == 8


async def test_unacknowledged_event_is_redelivered(world: Any, script: Any) -> None:
    """A reader that ends with unacknowledged events loses none: the next reader gets them."""
    async with world.service(subscription_ack_wait=0.5).running():
        made = await subscribe(world)
        await world.emit(script.messages("sbx-1", 1, project="p1"))
        assert words(await take(world, made, 1, ack=False)) == ["word 0"]
        assert (await subscriptions(world))["alerts"].unacknowledged == 1
        assert words(await take(world, made, 1)) == ["word 0"]
        assert (await subscriptions(world))["alerts"].unacknowledged == 0


async def test_idle_subscription_is_deleted(world: Any) -> None:
    """After `subscription_idle` the subscription is deleted, and its place is free."""
    async with world.service(subscription_idle=0.5, subscriptions_per_project=1).running():
        await subscribe(world)
        async with asyncio.timeout(PATIENCE):
            while await subscriptions(world):
                await asyncio.sleep(0.05)
        await subscribe(world, "next")


async def test_subscription_is_of_one_project(running: Any) -> None:
    """An operator must name the project: one for all would show a project's events to another's subscribers."""
    operator = await running.bus(Principal.OPERATOR)
    for request in (ListSubscriptions(), Subscribe(name="all"), Unsubscribe(name="all")):
        with pytest.raises(RefusedError) as refused:
            await operator.ask(request, "fleet")
        assert refused.value.problem.field == "project"
    assert (await operator.ask(Subscribe(name="theirs"), "p1")).consumer.startswith("sub-p1-")
    assert [*await subscriptions(running)] == ["theirs"]


async def test_subscriber_gets_nothing_of_another_project(running: Any, script: Any) -> None:
    """A subscriber can't pull, list, acknowledge or request another project's events, nor receive them live."""
    theirs = await subscribe(running, project="p2", start="all")
    await running.emit(script.messages("sbx-2", 3, project="p2"))
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    received: list[bytes] = []

    async def on_message(message: Any) -> None:
        received.append(message.data)

    inbox = bus.client.new_inbox()
    await bus.client.subscribe(inbox, cb=on_message)
    for subject, payload in (
        (f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT.EVENTS.{theirs.consumer}", b'{"batch": 5}'),
        (f"$JS.API.CONSUMER.MSG.NEXT.EVENTS.{theirs.consumer}", b'{"batch": 5}'),
        (f"{API_FROM_OUTSIDE}.CONSUMER.INFO.EVENTS.{theirs.consumer}", b""),
        (f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT.EVENTS.event-ingest", b'{"batch": 5}'),
        (f"$JS.ACK.EVENTS.{theirs.consumer}.1.1.1.1.0", b"+NXT"),
        ("sandherd.v1.request.event-ingest.events.p2", b"{}"),
        ("sandherd.v1.request.event-ingest.subscribe.p2", b'{"name": "mine"}'),
        ("sandherd.v1.request.event-ingest.unsubscribe.p2", b'{"name": "alerts"}'),
    ):
        before = bus.violations
        await bus.client.publish(subject, payload, inbox)
        await bus.flush()
        assert bus.violations == before + 1, subject
    await bus.client.subscribe("sandherd.v1.event.p2.>", cb=on_message)
    await running.emit(script.messages("sbx-3", 1, project="p2"))
    await bus.flush()
    assert received == []
    assert sorted(words(await take(running, theirs, 4, project="p2"))) == ["word 0", "word 0", "word 1", "word 2"]


async def test_pulled_events_reach_no_other_subject(running: Any, script: Any) -> None:
    """A subscriber that names a reply subject, and a sandbox that names the content, together publish nothing.

    Neither a command nor a request of another project is published, nor an acknowledgement of another's message.
    """
    theirs, own = await subscribe(running, project="p2", start="all"), await subscribe(running, start="all")
    await running.emit(script.messages("sbx-2", 2, project="p2"))
    await take(running, theirs, 2, project="p2", ack=False)
    elsewhere = (
        f"$JS.ACK.EVENTS.{theirs.consumer}.1.1.1.0.0",
        f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT.EVENTS.{theirs.consumer}",
        "sandherd.v1.request.event-ingest.unsubscribe.p2",
        command_subject("spawner.submit_task", "p2"),
    )
    worker = await running.bus(Principal.WORKER, project="p1", sandbox="sbx-1")
    for number in range(len(elsewhere)):
        await worker.publish(event_subject("p1", "sbx-1", "agent.message"), b'{"name": "alerts"}', msg_id=f"{number}")
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    for reply in elsewhere:
        for requested in (f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT", f"{API_FROM_OUTSIDE}.CONSUMER.INFO"):
            await bus.client.publish(f"{requested}.EVENTS.{own.consumer}", b'{"batch": 1}', reply)
        await bus.client.publish("sandherd.v1.request.event-ingest.subscriptions.p1", b"{}", reply)
    await bus.flush()
    async with asyncio.timeout(
        PATIENCE
    ):  # all were delivered, except to the subject of an acknowledgement, which the broker refuses
        while (await subscriptions(running))["alerts"].unacknowledged < len(elsewhere) - 1:
            await asyncio.sleep(0.05)
    after = (await subscriptions(running, "p2"))["alerts"]
    assert (after.created_at, after.waiting, after.unacknowledged) == (theirs.created_at, 0, 2)
    async with running.broker.provisioner() as jetstream:
        assert (await jetstream.stream_info("COMMANDS")).state.messages == 0


async def test_subscriber_cannot_create_or_change_consumers(running: Any, script: Any) -> None:
    """A subscriber can create no consumer, and not change the filter, the position or the end of its own."""
    made = await subscribe(running)
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    wider = {"durable_name": made.consumer, "name": made.consumer, "ack_policy": "explicit", "filter_subject": ">"}
    payload = json.dumps({"stream_name": "EVENTS", "config": wider}).encode()
    verbs = ("CREATE", "DURABLE.CREATE", "DELETE", "PAUSE", "RESET", "UNPIN")
    for api in ("$JS.API", API_FROM_OUTSIDE):
        for verb in verbs:
            with pytest.raises(BusError):
                await bus.request(f"{api}.CONSUMER.{verb}.EVENTS.{made.consumer}", payload, timeout=0.1)
    await bus.flush()
    assert bus.violations == 2 * len(verbs)
    after = (await subscriptions(running))["alerts"]
    assert after == made
    await running.emit(script.messages("sbx-2", 1, project="p2"))
    assert (await subscriptions(running))["alerts"].waiting == 0


async def test_subscriber_publishes_nothing_to_streams(running: Any) -> None:
    """A subscriber's events, commands, output, records and other requests are refused: no stream has a message."""
    bus = await running.bus(Principal.SUBSCRIBER, project="p1")
    for subject in (
        event_subject("p1", "sbx-1", "agent.message"),
        event_subject("p1", "task-1", "task.completed"),
        command_subject("spawner.submit_task", "p1"),
        "sandherd.v1.output.p1.sbx-1",
        "$KV.tasks.p1.task-1",
    ):
        before = bus.violations
        await bus.client.publish(subject, b"{}")
        await bus.flush()
        assert bus.violations == before + 1, subject
    with pytest.raises((NoResponderError, BusError)):
        await bus.request("sandherd.v1.request.spawner.tasks.p1", b"{}", timeout=0.1)
    async with running.broker.provisioner() as jetstream:
        for stream in ("EVENTS", "COMMANDS", "OUTPUT", "KV_tasks"):
            assert (await jetstream.stream_info(stream)).state.messages == 0
