"""Messages to a sandbox that accepts none are refused in time, and do not delay those of others."""

from dataclasses import replace
from typing import Any

import pytest

from message_relay.delivery_rules import too_many
from sandherd.bus.connection import SubjectFullError
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import INBOX, Principal

World = Any
FEW = 5


@pytest.fixture
async def small(world: World) -> World:
    """The herd, in which only a few messages may wait for one sandbox."""
    async with world.herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM["INBOX"], max_messages_per_subject=FEW)))
    return world


async def test_full_inbox_rejects_further_messages(small: World) -> None:
    """A message over the limit is rejected with the reason; another sandbox gets its own."""
    await small.record("sbx-deaf")
    await small.record("sbx-1")
    async with small.relay().running(), small.worker("sbx-1") as worker:
        waiting = [await small.send("sbx-deaf", str(number)) for number in range(FEW)]
        for message in waiting:
            await small.until_published(message, "queued")
        refused = await small.send("sbx-deaf", "one more")
        await small.until_published(refused, "rejected")
        await small.until_published(await small.send("sbx-1", "hello"), "acknowledged")
        (event,) = (await small.stored())[refused]
        assert (event["sequence"], event["data"]["reason"]) == (1, too_many("sbx-deaf"))
        assert worker.received == ["hello"]
        await small.until_inbox_has(FEW)


async def test_inbox_accepts_messages_again_after_deliveries(small: World) -> None:
    """Waiting messages are delivered in order, and later ones are accepted."""
    await small.record("sbx-1")
    async with small.relay().running():
        for number in range(FEW):
            await small.until_published(await small.send("sbx-1", str(number)), "queued")
        await small.until_published(await small.send("sbx-1", "too many"), "rejected")
        async with small.worker("sbx-1") as worker:
            await small.until_after(lambda: small.speak("sbx-1"), lambda: len(worker.received) == FEW)
            await small.until_published(await small.send("sbx-1", "later"), "acknowledged")
    assert worker.received == [*(str(number) for number in range(FEW)), "later"]


@pytest.mark.own_broker
async def test_repeated_message_to_a_full_inbox_is_a_duplicate(small: World) -> None:
    """The broker refuses a new message for a full subject, but reports a repetition as a duplicate."""
    subject = INBOX.fill(project="default", sandbox="sbx-1")
    async with small.herd.bus(Principal.MESSAGE_RELAY) as bus:
        for number in range(FEW):
            await bus.publish_stored(subject, b"x", msg_id=f"m{number}")
        assert (await bus.publish_stored(subject, b"x", msg_id="m0")).duplicate
        with pytest.raises(SubjectFullError):
            await bus.publish_stored(subject, b"x", msg_id="new")
        other = INBOX.fill(project="default", sandbox="sbx-2")
        assert not (await bus.publish_stored(other, b"x", msg_id="other")).duplicate
