"""What is said to an agent that goes round, between two of its runs."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.delivery import InboxMessage
from sandherd_worker.continuous.hearing import Hearing
from sandherd_worker.continuous.runs import Runs
from sandherd_worker.continuous.turns import Turns
from sandherd_worker.harnesses.base import CannotTakeError, Ended

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Run:
    """Ends when it has been given something."""

    follows_up = False

    def __init__(self) -> None:
        self.given: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        return

    async def done(self) -> Ended:
        return Ended(final_output=await self.given)

    async def ended(self) -> Ended:
        return await self.done()

    async def inject(self, message: InboxMessage) -> None:
        self.given.set_result(message.content)

    async def interrupt(self, message: str | None = None, /) -> None:
        return

    async def stop(self, grace: float) -> None:
        return


def letter(content: str, seconds: int) -> InboxMessage:
    return InboxMessage(
        message="msg-1",
        project="p1",
        sandbox="sbx-1",
        content=content,
        message_type="user_message",
        sent_at=BEGAN,
        expires_at=BEGAN + timedelta(seconds=seconds),
    )


async def test_a_message_that_expires_before_the_next_run_is_not_given(listener: Any) -> None:
    """It is refused then, and the run goes on with those that have not."""
    moment = [BEGAN]
    hearing = Hearing(listener, None, shown=False)

    def unwritten(feedback: str) -> InboxMessage:
        raise AssertionError(feedback)

    runs = Runs(lambda _number, _feedback: Run(), unwritten, hearing, Turns(), lambda: moment[0])
    late, early = asyncio.create_task(runs.inject(letter("late", 60))), runs.inject(letter("in time", 3600))
    await asyncio.sleep(0)
    moment[0] += timedelta(seconds=60)
    working = asyncio.create_task(runs.work(1, ""))
    with pytest.raises(CannotTakeError, match="expired"):
        await late
    await early
    assert (await working).final_output == "in time"
