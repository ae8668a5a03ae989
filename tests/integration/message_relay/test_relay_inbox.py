"""The entry of a new message is known without reading the inbox only if no other message precedes it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from message_relay.inbox import Inbox
from sandherd.bus.connection import SubjectFullError
from sandherd.bus.errors import WrongLastSequenceError
from sandherd.bus.stream_configs import stream_config
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.streams import BY_STREAM
from sandherd.contracts.subjects import Principal

World = Any
KEY = ("default", "sbx-1")


def message(name: str, sandbox: str = "sbx-1") -> InboxMessage:
    """A message of a user that expires in an hour."""
    at = datetime.now(UTC)
    return InboxMessage(
        message=name,
        project="default",
        sandbox=sandbox,
        content=name,
        message_type="user_message",
        sent_at=at,
        expires_at=at + timedelta(hours=1),
    )


async def test_first_message_is_known_only_if_no_other_waits(world: World) -> None:
    """Its entry is the one that a read finds; a message behind another has none, and is stored once."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        inbox = Inbox(bus)
        first = await inbox.store_first(message("a"))
        assert first is not None
        assert first == await inbox.first(KEY)
        assert await inbox.store_first(message("b")) is None
        other = await inbox.store_first(message("c", "sbx-2"))
        assert other is not None
        await inbox.remove(first.number)
        second = await inbox.first(KEY)
        assert second is not None
        assert second.message.message == "b"
        await inbox.remove(second.number)
        assert (await inbox.store_first(message("d"))) == await inbox.first(KEY)
        assert await world.inbox_size() == 2


async def test_repeated_message_is_not_taken_for_the_first(world: World) -> None:
    """A message that was stored before may have been delivered: its entry is not returned again."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        inbox, repeated = Inbox(bus), message("a")
        first = await inbox.store_first(repeated)
        assert first is not None
        assert await inbox.store_first(repeated) is None
        await inbox.remove(first.number)
        assert await inbox.store_first(repeated) is None
        assert await world.inbox_size() == 0


@pytest.mark.own_broker
async def test_message_to_a_full_inbox_is_refused(world: World) -> None:
    """The error is that of a full inbox, and not that another message waits."""
    async with world.herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM["INBOX"], max_messages_per_subject=1)))
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        inbox = Inbox(bus)
        await inbox.store_first(message("a"))
        with pytest.raises(SubjectFullError):
            await inbox.store_first(message("b"))


async def test_message_to_an_idle_sandbox_is_delivered_before_the_inbox_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay that has stored it knows it: a round trip less for each message."""
    reads: list[int] = []
    first = Inbox.first

    async def counted(inbox: Inbox, *key: Any) -> Any:
        reads.append(len(worker.received))
        return await first(inbox, *key)

    monkeypatch.setattr(Inbox, "first", counted)
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        for number in range(3):
            await world.until_published(await world.send("sbx-1", str(number)), "acknowledged")
            await world.until_inbox_has(0)
    assert worker.received == ["0", "1", "2"]
    assert 0 not in reads


async def test_messages_that_two_relays_store_are_delivered_in_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two relays store messages to one sandbox, and one of them delivers: in the order of the stream, each once."""
    stored: dict[str, int] = {}
    store = Inbox.store

    async def noted(inbox: Inbox, new: InboxMessage, *more: Any) -> Any:
        found = await store(inbox, new, *more)
        stored[new.content] = found.seq
        return found

    monkeypatch.setattr(Inbox, "store", noted)
    sandbox = await world.record("sbx-1")
    async with world.relay().running(), world.relay().running(), world.worker(sandbox) as worker:
        for name in [await world.send(sandbox, str(number)) for number in range(40)]:
            await world.until_published(name, "acknowledged")
    assert len(stored) == 40
    assert worker.received == sorted(stored, key=lambda content: stored[content])


async def test_publish_that_expects_another_last_message_is_not_retried(world: World) -> None:
    """No retry of it would be stored: it fails at once, with an error of its own."""
    async with world.herd.bus(Principal.MESSAGE_RELAY) as bus:
        inbox, header = Inbox(bus), {"Nats-Expected-Last-Subject-Sequence": "0"}
        await inbox.store(message("a"), header)
        with pytest.raises(WrongLastSequenceError):
            await inbox.store(message("b"), header)
