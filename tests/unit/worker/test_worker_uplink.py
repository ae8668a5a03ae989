"""The uplink when a stream loses its leader or refuses a record: what it sends again, and in which order."""

import asyncio
from pathlib import Path
from typing import cast

from sandherd.bus.connection import Bus, LeaderlessError, StreamFullError
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import RecordKind, SpoolRecord
from sandherd_worker.uplink import Uplink
from tests.patience import PATIENCE

LOST = "1"


class Window:
    """Publishes each message in a task of its own."""

    connected = True
    reconnects = 0

    async def publish_window(self) -> "Window":
        return self

    def publish(self, _subject: str, _payload: bytes, *, msg_id: str) -> "asyncio.Task[None]":
        return asyncio.create_task(self.store(msg_id))

    async def store(self, msg_id: str) -> None:
        raise NotImplementedError


class Stream(Window):
    """A stream whose leader is lost with the first message; it responds to the second one that it has no leader.

    After a number of messages there is a leader again.
    """

    def __init__(self, questions: int) -> None:
        self._questions = questions
        self.taken: list[str] = []
        self.in_lost_hands = 0

    async def store(self, msg_id: str) -> None:
        if msg_id == LOST and not self.in_lost_hands:
            self.in_lost_hands += 1
            await asyncio.Event().wait()  # there is no reply any more, and it has no end of its own here
        if self.in_lost_hands and self._questions:
            self._questions -= 1
            raise LeaderlessError("no leader")
        self.taken.append(msg_id)


async def test_message_sent_to_lost_leader_is_republished_first(tmp_path: Path) -> None:
    """The uplink doesn't wait for an acknowledgement of the lost leader, and order is preserved."""
    spool, stream = Spool.open(tmp_path / "spool", limit=1024 * 1024), Stream(questions=6)
    uplink = Uplink(spool)
    names = [str(number) for number in range(10)]
    await send(uplink, spool, cast("Bus", stream), names)
    assert stream.in_lost_hands == 1
    assert stream.taken == names


class FullStream(Window):
    """It refuses one record once, after the last one was published too, and replies on those behind it even later."""

    def __init__(self, large: str, last: str) -> None:
        self._large, self._last = large, last
        self._complete, self._refused = asyncio.Event(), asyncio.Event()
        self.published: list[str] = []

    async def store(self, msg_id: str) -> None:
        self.published.append(msg_id)
        if msg_id == self._last:
            self._complete.set()
        if self._large not in self.published or self._refused.is_set():
            return
        if msg_id == self._large:
            await self._complete.wait()
            self._refused.set()
            raise StreamFullError("no space")
        await self._refused.wait()
        await asyncio.sleep(0.02)  # these replies arrive after the uplink has seen the refusal


async def test_records_stored_behind_a_refused_one_are_not_republished(tmp_path: Path) -> None:
    """The stream stores small records behind a large one that it refuses, and its replies arrive after the refusal.

    They are waited for: by the time there is space, the broker may have removed the message ids of the small records.
    """
    names = [str(number) for number in range(10)]
    spool, stream = Spool.open(tmp_path / "spool", limit=1024 * 1024), FullStream("3", names[-1])
    await send(Uplink(spool), spool, cast("Bus", stream), names)
    assert sorted(stream.published) == sorted([*names, "3"])


async def send(uplink: Uplink, spool: Spool, bus: Bus, names: list[str]) -> None:
    """Publish one record alone, then the others, in a window."""
    await spool.append(SpoolRecord(RecordKind.EVENT, "subject", names[0], b"x", 1))
    sending = asyncio.create_task(uplink.run(bus))
    try:
        async with asyncio.timeout(PATIENCE):
            await spool.until(lambda: spool.depth == 0)  # from here on it sends in a window
            for name in names[1:]:
                await spool.append(SpoolRecord(RecordKind.EVENT, "subject", name, b"x", 1))
            await spool.until(lambda: spool.depth == 0)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        uplink.close()
