"""Messages to an agent between two of its iterations."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.continuous.iteration_events import IterationEvents
from sandherd_worker.continuous.runs import IterationRuns, IterationTurns
from sandherd_worker.harnesses.base import AgentEnd, MessageRefusedError

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Run:
    """Ends when it has been given something."""

    follows_up = False

    def __init__(self) -> None:
        self.given: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        return

    async def wait_done(self) -> AgentEnd:
        return AgentEnd(final_output=await self.given)

    async def ended(self) -> AgentEnd:
        return await self.wait_done()

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


async def test_message_that_expires_before_the_next_run_is_refused(listener: Any) -> None:
    """An expired message is refused; the next run gets the messages that have not expired."""
    moment = [BEGAN]
    hearing = IterationEvents(listener, None, search_output=False)

    def unwritten(feedback: str) -> InboxMessage:
        raise AssertionError(feedback)

    runs = IterationRuns(lambda _number, _feedback: Run(), unwritten, hearing, IterationTurns(), lambda: moment[0])
    late, early = asyncio.create_task(runs.inject(letter("late", 60))), runs.inject(letter("in time", 3600))
    await asyncio.sleep(0)
    moment[0] += timedelta(seconds=60)
    working = asyncio.create_task(runs.work(1, ""))
    with pytest.raises(MessageRefusedError, match="expired"):
        await late
    await early
    assert (await working).final_output == "in time"
