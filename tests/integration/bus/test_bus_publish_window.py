"""Many messages are published at a time: each future has its own message's result, and none waits forever."""

import asyncio
import signal
from pathlib import Path

import pytest
from nats.errors import StaleConnectionError

from sandherd.bus.connection import Bus, ConnectionLostError, LeaderlessError, PublishFailedError, PublishRefusedError
from sandherd.bus.publish_window import PublishReply
from sandherd.stack.broker import Broker
from tests.integration.bus.test_bus_publish import SUBJECT, connected, state_of, stored
from tests.patience import PATIENCE
from tests.polling import eventually

COUNT = 500


async def error_of(reply: PublishReply) -> str:
    """The type of the future's error."""
    async with asyncio.timeout(PATIENCE):
        return type((await asyncio.gather(reply, return_exceptions=True))[0]).__name__


async def test_each_message_gets_its_own_acknowledgement(herd: Broker) -> None:
    """Messages are stored in the order of the calls; a repeated id is acknowledged as a duplicate of the first."""
    async with connected(herd) as bus:
        window = await bus.publish_window()
        assert await bus.publish_window() is window
        replies = [window.publish(SUBJECT, b"%d" % number, msg_id=f"id-{number}") for number in range(COUNT)]
        replies.append(window.publish(SUBJECT, b"again", msg_id="id-7"))
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*replies)
    numbers = [one.seq for one in found]
    assert numbers[:-1] == list(range(numbers[0], numbers[0] + COUNT))
    assert (numbers[-1], [one.duplicate for one in found]) == (numbers[7], [False] * COUNT + [True])
    assert await stored(herd) == [str(number) for number in range(COUNT)]


async def test_error_belongs_to_one_message(herd: Broker) -> None:
    """A message that is too large, or has line ends in its subject or id, is refused; only the others are stored.

    Without the check of line ends, the broker would read what follows one as a command. For a message that is too large
    with its headers, the broker would close the connection.
    """
    async with connected(herd) as bus:
        window = await bus.publish_window()
        replies = [
            window.publish(SUBJECT, bytes(bus.client.max_payload), msg_id="id-2"),
            window.publish(f"{SUBJECT} 1\r\nx\r\nPUB {SUBJECT}", b"injected", msg_id="id-3"),
            window.publish(SUBJECT, b"injected", msg_id="id-4\r\n\r\n"),
            window.publish(SUBJECT, b"good", msg_id="id-5"),
        ]
        errors = [await error_of(reply) for reply in replies]
    refused = PublishRefusedError.__name__
    assert errors == [refused, refused, refused, "Acknowledgement"]
    assert await stored(herd) == ["good"]


@pytest.mark.own_broker
async def test_missing_stream_ends_the_wait(herd: Broker) -> None:
    """The broker replies at once that no stream stores the message."""
    async with connected(herd) as bus, herd.provisioner() as jetstream:
        window = await bus.publish_window()
        await jetstream.delete_stream("COMMANDS")
        assert await error_of(window.publish(SUBJECT, b"x", msg_id="id-x")) == LeaderlessError.__name__


async def test_cancelled_message_affects_no_other(herd: Broker) -> None:
    """The acknowledgement of a cancelled message is ignored, and the connection continues."""
    async with connected(herd) as bus:
        window = await bus.publish_window()
        window.publish(SUBJECT, b"first", msg_id="id-1").cancel()
        async with asyncio.timeout(PATIENCE):
            await window.publish(SUBJECT, b"second", msg_id="id-2")
            await bus.publish(SUBJECT, b"third", msg_id="id-3")
    assert await stored(herd) == ["first", "second", "third"]


async def stopped(herd: Broker, bus: Bus) -> PublishReply:
    """A message that was written to a stopped broker."""
    window = await bus.publish_window()
    await bus.flush()
    herd.child.send(signal.SIGSTOP)
    await eventually(lambda: all(state_of(thread) == "T" for thread in Path(f"/proc/{herd.child.pid}/task").iterdir()))
    reply = window.publish(SUBJECT, b"x", msg_id="id-x")
    await eventually(lambda: bus.client.pending_data_size == 0)
    return reply


async def test_lost_connection_ends_all_waits(herd: Broker) -> None:
    """The futures of a lost connection fail at once, later ones too; after a reconnect the window works."""
    async with connected(herd) as bus:
        reply = await stopped(herd, bus)
        await herd.kill()
        assert await error_of(reply) == ConnectionLostError.__name__
        await eventually(lambda: not bus.connected)
        window = await bus.publish_window()
        assert await error_of(window.publish(SUBJECT, b"x", msg_id="id-x")) == PublishFailedError.__name__
        await herd.restart()
        await eventually(lambda: bus.connected)
        async with asyncio.timeout(PATIENCE):
            await window.publish(SUBJECT, b"later", msg_id="id-later")
    assert await stored(herd) == ["later"]


async def test_wait_for_an_acknowledgement_is_limited(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a broker does not reply in time, the message has failed; a late reply is ignored."""
    monkeypatch.setattr("sandherd.bus.publish_window.acknowledgement_timeout", lambda **_: 0.1)
    async with connected(herd) as bus:
        try:
            assert await error_of(await stopped(herd, bus)) == PublishFailedError.__name__
        finally:
            herd.child.send(signal.SIGCONT)
        monkeypatch.setattr("sandherd.bus.publish_window.acknowledgement_timeout", lambda **_: PATIENCE)
        window = await bus.publish_window()
        assert (await window.publish(SUBJECT, b"x", msg_id="id-x")).duplicate


async def congested(herd: Broker, bus: Bus) -> list[PublishReply]:
    """Messages to a broker that does not run, of which the kernel does not take the last ones."""
    replies, window, size = [await stopped(herd, bus)], await bus.publish_window(), bus.client.max_payload // 2
    while bus.client.unsent_bytes < 4 * size:
        replies.append(window.publish(SUBJECT, bytes(size), msg_id=f"id-{len(replies)}"))
        await bus.client._flush_pending()
        await asyncio.sleep(0)  # until what the kernel takes is written
    return replies


async def test_server_that_does_not_read_is_left(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits end as soon as the connection is given up, and not when the server has read what was written to it.

    The client may then connect to another server.
    """
    monkeypatch.setattr("sandherd.bus.publish_window.acknowledgement_timeout", lambda **_: 10 * PATIENCE)
    async with connected(herd) as bus:
        try:
            replies = await congested(herd, bus)
            await bus.client._process_op_err(StaleConnectionError())  # as after some PINGs without a reply
            assert {await error_of(reply) for reply in replies} == {ConnectionLostError.__name__}
        finally:
            herd.child.send(signal.SIGCONT)
        await eventually(lambda: bus.connected)
        async with asyncio.timeout(PATIENCE):
            await (await bus.publish_window()).publish(SUBJECT, b"later", msg_id="id-later")


async def test_time_limit_begins_when_the_message_is_written(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that is not written is not late: on a slow connection, it would be repeated behind itself forever."""
    monkeypatch.setattr("sandherd.bus.publish_window.acknowledgement_timeout", lambda **_: 0.1)
    async with connected(herd) as other, connected(herd) as bus:
        window = await other.publish_window()
        await other.flush()
        try:
            replies = await congested(herd, bus)
            assert await error_of(window.publish(SUBJECT, b"x", msg_id="id-other")) == PublishFailedError.__name__
            assert not replies[-1].done(), "although it was published earlier"
        finally:
            herd.child.send(signal.SIGCONT)
        await asyncio.gather(*replies, return_exceptions=True)
