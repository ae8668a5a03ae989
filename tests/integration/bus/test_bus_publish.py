"""Over broken connections an unacknowledged message is published again at once, and stored once."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import Bus, ConnectionLostError, PublishFailedError
from sandherd.bus.replies import Acknowledgement
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

SUBJECT = "sandherd.v1.command.spawner.submit_task.p1"
FOR_EVER = 3600.0
RECONNECTS, AT_ONCE, BETWEEN = 10, 8, 40


@asynccontextmanager
async def connected(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        yield bus


async def stored(herd: Broker) -> list[str]:
    """The messages in the stream, in order."""
    async with herd.provisioner() as js:
        state = (await js.stream_info("COMMANDS")).state
        numbers = range(state.first_seq, state.last_seq + 1)
        return [((await js.get_msg("COMMANDS", number)).data or b"").decode() for number in numbers]


def state_of(thread: Path) -> str:
    """The kernel's state of a thread; `T` is stopped (proc(5))."""
    return thread.joinpath("stat").read_text().rpartition(")")[2].split()[0]


class Failures:
    """Counts why single publishes failed, and fails the test if one waits until its time-out."""

    def __init__(self, bus: Bus) -> None:
        self.causes: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()
        self._publish = bus.publish
        bus.publish = self.publish  # type: ignore[method-assign]  # observed

    async def publish(self, subject: str, payload: bytes, *, msg_id: str, **more: Any) -> Acknowledgement:
        self.tries[msg_id] += 1
        try:
            return await self._publish(subject, payload, msg_id=msg_id, **{**more, "timeout": FOR_EVER})
        except PublishFailedError as error:
            self.causes[type(error).__name__] += 1
            raise


async def test_reconnects_delay_no_publisher(herd: Broker) -> None:
    """Over ten forced reconnects or more every message is stored once; lost acknowledgements are not waited for.

    No publish may end by its time-out: nats-py alone waits for a reply that no connection delivers.
    """
    published: list[str] = []
    numbers: Iterator[int] = count()

    async def talk(bus: Bus, enough: asyncio.Event) -> None:
        while not enough.is_set():
            text = str(next(numbers))
            await bus.publish_stored(SUBJECT, text.encode(), msg_id=f"id-{text}")
            published.append(text)

    async with connected(herd) as bus:
        failures, enough = Failures(bus), asyncio.Event()
        talkers = [asyncio.create_task(talk(bus, enough)) for _ in range(AT_ONCE)]
        for number in count():
            if number >= RECONNECTS and failures.causes:  # on a busy machine a reconnect may lose no acknowledgement
                break
            await eventually(partial(_are, published, len(published) + BETWEEN))
            await bus.client.force_reconnect()
            await eventually(partial(_reconnected, bus, number + 1))
        enough.set()
        await asyncio.gather(*talkers)
    assert sorted(await stored(herd), key=int) == sorted(published, key=int)
    assert set(failures.causes) == {ConnectionLostError.__name__}


def _are(published: list[str], wanted: int) -> bool:
    return len(published) >= wanted


def _reconnected(bus: Bus, times: int) -> bool:
    return bus.reconnects == times


async def test_lost_connection_ends_the_wait_for_an_acknowledgement(herd: Broker) -> None:
    """If the broker is killed with the message, the publish fails immediately, whatever its time-out is."""
    async with connected(herd) as bus:
        herd.child.send(signal.SIGSTOP)
        await eventually(
            lambda: all(state_of(thread) == "T" for thread in Path(f"/proc/{herd.child.pid}/task").iterdir())
        )
        publishing = asyncio.create_task(bus.publish(SUBJECT, b"x", msg_id="id-x", timeout=FOR_EVER))
        await eventually(lambda: bus.client.pending_data_size == 0 and bus.client.stats["out_msgs"] > 0)
        await herd.kill()
        with pytest.raises(ConnectionLostError):
            await publishing
        await herd.restart()


async def test_connection_to_a_broker_that_stops_reading_is_closed(
    herd: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that was already written can't be received, and closing does not wait for it."""
    monkeypatch.setattr("sandherd.bus.shutdown._CLOSE_SECONDS", 0.2)
    try:
        async with asyncio.timeout(PATIENCE), connected(herd) as bus:
            herd.child.send(signal.SIGSTOP)
            writer = bus.client._transport._io_writer  # type: ignore[union-attr]
            while not writer.transport.get_write_buffer_size():
                writer.write(b"PING\r\n" * 10_000)
                await asyncio.sleep(0)
    finally:
        herd.child.send(signal.SIGCONT)
    assert bus.closed


async def test_publish_while_disconnected_waits_and_is_sent_once(herd: Broker) -> None:
    """Messages that are published while disconnected do not accumulate in the client, and are sent once."""
    async with connected(herd) as bus:
        failures = Failures(bus)
        await herd.kill()
        await eventually(lambda: not bus.connected)
        publishing = asyncio.create_task(bus.publish_stored(SUBJECT, b"x", msg_id="id-x"))
        await herd.restart()
        await publishing
    assert failures.tries == {"id-x": 1}
    assert await stored(herd) == ["x"]


@pytest.mark.parametrize("forgotten", [True, False])
async def test_unsent_messages_are_dropped_before_an_ordered_republish(herd: Broker, forgotten: bool) -> None:
    """nats-py sends after a reconnect what was published while disconnected, unless `drop_unsent` is called."""
    async with connected(herd) as bus:
        await herd.kill()
        await eventually(lambda: not bus.connected)
        for text in ("later", "still later"):
            await bus.client.publish(SUBJECT, text.encode(), headers={"Nats-Msg-Id": f"id-{text}"})
        assert bus.client.pending_data_size > 0
        if forgotten:
            bus.drop_unsent()
            assert bus.client.pending_data_size == 0
        await herd.restart()
        await bus.publish_stored(SUBJECT, b"first", msg_id="id-first")
        await bus.publish_stored(SUBJECT, b"later", msg_id="id-later")
    assert await stored(herd) == (["first", "later"] if forgotten else ["later", "still later", "first"])
