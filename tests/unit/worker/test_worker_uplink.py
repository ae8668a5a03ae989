"""The uplink when the stream's leader is lost: what is on its way to it is called back at once, and sent first."""

import asyncio
from pathlib import Path
from typing import Any, cast

from sandherd.bus.connection import Bus, LeaderlessError
from sandherd_worker.spool import Spool
from sandherd_worker.spool_file import Kind, Record
from sandherd_worker.uplink import Uplink
from tests.patience import PATIENCE

LOST = "1"


class Stream:
    """A stream whose leader is lost with the first message in its hands; asked for the second it says that none leads.

    After so many questions there is a leader again.
    """

    connected = True
    reconnects = 0

    def __init__(self, questions: int) -> None:
        self._questions = questions
        self.taken: list[str] = []
        self.in_lost_hands = 0

    async def publish(self, _subject: str, _payload: bytes, *, msg_id: str, **_more: Any) -> None:
        if msg_id == LOST and not self.in_lost_hands:
            self.in_lost_hands += 1
            await asyncio.Event().wait()  # nobody answers any more, and it has no end of its own here
        if self.in_lost_hands and self._questions:
            self._questions -= 1
            raise LeaderlessError("nobody leads")
        self.taken.append(msg_id)


async def test_what_was_on_its_way_to_a_lost_leader_is_not_waited_for(tmp_path: Path) -> None:
    """Its acknowledgement would never come; and nothing behind it is taken before it."""
    spool, stream = Spool.open(tmp_path / "spool", limit=1024 * 1024), Stream(questions=6)
    uplink = Uplink(spool)
    names = [str(number) for number in range(10)]
    await spool.append(Record(Kind.EVENT, "subject", names[0], b"x", 1))
    sending = asyncio.create_task(uplink.run(cast("Bus", stream)))
    try:
        async with asyncio.timeout(PATIENCE):
            await spool.until(lambda: spool.depth == 0)  # from here on it sends in a window
            for name in names[1:]:
                await spool.append(Record(Kind.EVENT, "subject", name, b"x", 1))
            await spool.until(lambda: spool.depth == 0)
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        uplink.close()
    assert stream.in_lost_hands == 1
    assert stream.taken == names
