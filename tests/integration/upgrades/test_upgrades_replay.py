"""The events of the last release are replayed through today's event-ingest to today's client and command."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from event_ingest.main import compose
from sandherd.bus.connection import Bus
from sandherd.cli.render.console import Paint
from sandherd.cli.render.event_line import format_event
from sandherd.client import Context, Herd
from sandherd.client.events import decoder
from sandherd.contracts.requests import StoredEvent
from sandherd.contracts.subjects import TABLE, MessageKind, Principal, event_subject
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.releases.release_record import last_release

EVENTS = last_release().of_kind("events")
PROJECT = "demo"


def publisher(subject: str) -> Principal:
    """The principal that may publish it."""
    row = next(row for row in TABLE if row.kind is MessageKind.EVENT and row.match(subject))
    return next(iter(row.producers))


async def publish_all(broker: Broker) -> None:
    """Publish each event unchanged, as the component that published it then."""
    buses: dict[tuple[Principal, str], Bus] = {}
    async with AsyncExitStack() as stack:
        for event in EVENTS.values():
            subject = event_subject(event["project"], event["subject"], event["type"])
            who = publisher(subject)
            key = who, event["subject"] if who is Principal.WORKER else ""
            if key not in buses:
                buses[key] = await stack.enter_async_context(broker.bus(who, project=PROJECT, sandbox=key[1]))
            await buses[key].publish(subject, json.dumps(event).encode(), msg_id=event["id"])


@pytest.fixture
def context(herd: Broker) -> Context:
    credentials = herd.credentials(Principal.CLIENT, project=PROJECT)
    return Context(nats_url=herd.url, credentials=credentials, project=PROJECT, home=herd.home)


async def stored(herd: Herd) -> list[StoredEvent]:
    """The events in the history, once it has all."""
    async with asyncio.timeout(PATIENCE):
        while len(found := [event async for event in herd.events()]) < len(EVENTS):
            await asyncio.sleep(0.05)
    return found


async def test_every_released_event_is_stored_and_shown(herd: Broker, postgres: str, context: Context) -> None:
    """No released event is refused; each is returned unchanged, creates records, and has a summary."""
    async with compose(herd.settings(Principal.EVENT_INGEST, database_url=postgres)).running():
        await publish_all(herd)
        async with Herd.connect(context) as client:
            retained = await stored(client)
            assert {event.envelope["id"]: event.envelope for event in retained} == {
                one["id"]: one for one in EVENTS.values()
            }
            for event in retained:
                assert " ".join(format_event(decoder.from_history(event), Paint(on=False)))
            assert (await client.tasks(past=True)).items
            assert (await client.sandboxes(past=True)).items
