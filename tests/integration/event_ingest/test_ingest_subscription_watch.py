"""The lag of subscriptions is measured, and a warning is published before an unread one expires."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from event_ingest.database import Database
from event_ingest.schema import Schema
from event_ingest.subscription_watch import SubscriptionWatch
from sandherd.contracts.requests import ListEvents, Subscribe
from sandherd.contracts.subjects import Principal
from tests.patience import PATIENCE
from tests.polling import eventually

WARNING = "subscription.neglected"
IDLE = 1000.0


async def warnings(world: Any) -> list[Any]:
    """The warnings in the history of the project."""
    return list((await world.ask(ListEvents(types=[WARNING]), "p1")).events)


async def is_measured(service: Any, watch: SubscriptionWatch, lag: int) -> bool:
    """Whether the metric has this value: the broker counts events a moment after it has acknowledged them."""
    await watch.measure(datetime.now(UTC))
    labels = {"project": "p1", "subscription": "alerts"}
    return bool(service.registry.get_sample_value("sandherd_subscription_lag_messages", labels) == lag)


async def test_neglected_subscription_is_measured_and_warned_of_once(world: Any, script: Any) -> None:
    """A metric has its lag by name; until it is read, checks of any replica publish only one warning."""
    service = world.service(subscription_idle=IDLE)
    async with service.running():
        bus = await world.bus(Principal.SUBSCRIBER, project="p1")
        await bus.ask(Subscribe(name="alerts", types=["agent"], start="all"), "p1")
        await world.emit(script.messages("sbx-1", 3, project="p1"))
        await world.stored(3)
        database = Database(world.postgres, Schema(partial(datetime.now, UTC)).prepare)
        checks = asyncio.create_task(database.run_checks())
        assert await database.wait_available(PATIENCE)
        replicas = [SubscriptionWatch(service, database) for _ in range(2)]
        try:
            await eventually(partial(is_measured, service, replicas[0], 3), "the lag is measured")
            assert await warnings(world) == []
            late = datetime.now(UTC) + timedelta(seconds=IDLE * 0.9)
            await asyncio.gather(*(replica.measure(late) for replica in replicas))
            await world.stored(4)
            await replicas[1].measure(late + timedelta(seconds=1))
            [warned] = await warnings(world)
        finally:
            checks.cancel()
            await asyncio.wait([checks])
    assert (warned.envelope["subject"], warned.envelope["data"]["waiting"]) == ("alerts", 3)
