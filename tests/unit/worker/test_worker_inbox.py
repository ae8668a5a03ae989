"""The inbox without a broker: each message reaches the agent once, in order, or is rejected with a reason."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.delivery import InboxMessage
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.base import CannotTakeError
from sandherd_worker.inbox import Inbox
from sandherd_worker.injected import Injected
from sandherd_worker.spool import Spool


class Agent:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.refuses: str | None = None

    async def inject(self, message: InboxMessage) -> None:
        if self.refuses:
            raise CannotTakeError(self.refuses)
        if message.message_type == "interrupt":
            await self.interrupt(message.message)
        self.heard.append(message.content)

    async def interrupt(self, message: str | None = None, /) -> None:
        self.heard.append(f"(stop for {message})")


def letter(name: str, content: str = "x", **fields: Any) -> bytes:
    now = datetime.now(UTC)
    given = {
        "project": "p1",
        "sandbox": "sbx-1",
        "message_type": "user_message",
        "expires_at": now + timedelta(hours=1),
        **fields,
    }
    message = InboxMessage(message=name, content=content, sent_at=now, **given)
    return message.model_dump_json().encode()


class Clock:
    """The time, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: int) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def inbox(emitter: Emitter, tmp_path: Path, assignment: Any, clock: Clock) -> Inbox:
    return Inbox(assignment(tmp_path), emitter, Injected(tmp_path / "injected"), clock)


async def test_a_message_is_injected_once_however_often_it_comes(
    inbox: Inbox, spool: Spool, said: Any, tmp_path: Path, emitter: Emitter, assignment: Any
) -> None:
    """Every time the receipt is the same; also after a restart of the worker."""
    agent = Agent()
    inbox.ready(agent)
    for _ in range(3):
        receipt = await inbox.take(letter("msg-1"))
        assert receipt is not None
        assert receipt.outcome == "acknowledged"
    again = Inbox(assignment(tmp_path), emitter, Injected(tmp_path / "injected"))
    again.close("the agent is gone")
    receipt = await again.take(letter("msg-1"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"
    assert agent.heard == ["x"]
    assert [event.type for event in said(spool)] == ["agent.message_injected"]


async def test_messages_wait_for_the_agent_and_keep_their_order(inbox: Inbox) -> None:
    """What comes before the agent is ready is neither lost nor rejected."""
    agent = Agent()
    waiting = [asyncio.ensure_future(inbox.take(letter(f"msg-{number}", str(number)))) for number in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    inbox.ready(agent)
    await asyncio.gather(*waiting)
    assert agent.heard == ["0", "1", "2", "3", "4"]


class Busy(Agent):
    """Takes a message when its turn is stopped, or when what it asked for is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.waits = asyncio.Event()

    async def inject(self, message: InboxMessage) -> None:
        if message.message_type == "approval":
            self.free.set()
        elif message.message_type == "user_message":
            self.waits.set()
            await self.free.wait()
        await super().inject(message)

    async def interrupt(self, message: str | None = None, /) -> None:
        await super().interrupt(message)
        self.free.set()


async def test_an_answer_overtakes_a_message_that_is_not_taken(inbox: Inbox) -> None:
    """What waits for leave takes no message, so the answer may not stand behind one."""
    agent = Busy()
    inbox.ready(agent)
    waiting = asyncio.ensure_future(inbox.take(letter("msg-1", "later")))
    await agent.waits.wait()
    receipt = await inbox.take(letter("msg-2", "yes", message_type="approval"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"
    await waiting
    assert agent.heard == ["yes", "later"]


async def test_an_interrupt_stops_what_a_message_waits_for(inbox: Inbox) -> None:
    """At once and only once however often it is handed over; its instruction keeps its place.

    Both times that the agent is told to stop, it is told for which message: it may know that it has.
    """
    agent = Busy()
    inbox.ready(agent)
    waiting = asyncio.ensure_future(inbox.take(letter("msg-1", "first")))
    await agent.waits.wait()
    stop = letter("msg-2", "second", message_type="interrupt")
    receipts = await asyncio.gather(inbox.take(stop), inbox.take(stop), waiting)
    assert [receipt and receipt.outcome for receipt in receipts] == ["acknowledged"] * 3
    assert agent.heard == ["(stop for msg-2)", "first", "(stop for msg-2)", "second"]


async def test_an_agent_that_takes_none_rejects_with_its_reason(inbox: Inbox, spool: Spool, said: Any) -> None:
    """Nothing is said to have been injected, and no later delivery changes what was answered."""
    agent = Agent()
    agent.refuses = reason = "the program has closed its standard input"
    inbox.ready(agent)
    first, meanwhile = await asyncio.gather(inbox.take(letter("msg-1")), inbox.take(letter("msg-1")))
    agent.refuses = None
    for receipt in (first, meanwhile, await inbox.take(letter("msg-1"))):
        assert receipt is not None
        assert (receipt.outcome, receipt.reason) == ("rejected", reason)
    assert (said(spool), agent.heard) == ([], [])
    receipt = await inbox.take(letter("msg-2"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"


async def test_a_message_that_expires_while_it_waits_is_rejected(inbox: Inbox, clock: Clock) -> None:
    """Whether it waits for the agent or behind another message: whoever sent it was told that it has expired."""
    agent = Busy()
    early = asyncio.ensure_future(inbox.take(letter("msg-1", "too early")))
    await asyncio.sleep(0)
    clock.pass_by(hours=1, seconds=1)
    inbox.ready(agent)
    receipts = [await early]
    late = clock.now + timedelta(hours=3)
    waiting = asyncio.ensure_future(inbox.take(letter("msg-2", "in time", expires_at=late)))
    await agent.waits.wait()
    soon = clock.now + timedelta(hours=1)
    behind = asyncio.ensure_future(inbox.take(letter("msg-3", "too late", expires_at=soon)))
    await asyncio.sleep(0)
    clock.pass_by(hours=2)
    agent.free.set()
    await waiting
    receipts.append(await behind)
    assert [receipt and (receipt.outcome, receipt.reason) for receipt in receipts] == [
        ("rejected", "it has expired before the agent could take it")
    ] * 2
    assert agent.heard == ["in time"]


async def test_an_interrupt_that_has_expired_stops_nothing(inbox: Inbox, clock: Clock) -> None:
    """Neither ahead of what waits nor in its turn; one that was taken in time keeps its receipt."""
    agent = Busy()
    inbox.ready(agent)
    taken = letter("msg-1", "first", message_type="interrupt")
    await inbox.take(taken)
    clock.pass_by(minutes=30)
    waiting = asyncio.ensure_future(inbox.take(letter("msg-2", "waits", expires_at=clock.now + timedelta(hours=1))))
    agent.free.clear()
    await agent.waits.wait()
    clock.pass_by(minutes=31)
    late = asyncio.ensure_future(inbox.take(letter("msg-3", "second", message_type="interrupt")))
    await asyncio.sleep(0)
    agent.free.set()
    receipts = [await late, await inbox.take(taken), await waiting]
    assert [receipt and receipt.outcome for receipt in receipts] == ["rejected", "acknowledged", "acknowledged"]
    assert not any(receipt and receipt.agent_gone for receipt in receipts)
    assert agent.heard == ["(stop for msg-1)", "first", "waits"]


async def test_after_the_end_messages_are_rejected_those_that_waited_too(inbox: Inbox) -> None:
    """With the reason, never silently kept."""
    waiting = asyncio.ensure_future(inbox.take(letter("msg-1")))
    await asyncio.sleep(0)
    inbox.close("the agent has ended")
    for receipt in (await waiting, await inbox.take(letter("msg-2"))):
        assert receipt is not None
        assert (receipt.outcome, receipt.reason, receipt.agent_gone) == ("rejected", "the agent has ended", True)


async def test_an_interrupt_is_told_as_one(inbox: Inbox, spool: Spool, said: Any) -> None:
    """`agent.interrupted`, then that the message has reached the agent; with who sent it."""
    inbox.ready(Agent())
    await inbox.take(letter("msg-1", "stop that", message_type="interrupt", sender_id="ann"))
    events = said(spool)
    assert [event.type for event in events] == ["agent.interrupted", "agent.message_injected"]
    assert (events[0].data.reason, events[1].data.sender_id, events[1].data.intervention_number) == (
        "stop that",
        "ann",
        1,
    )


@pytest.mark.parametrize(
    "document", [b"", b"{}", b"\xff", letter("msg-1", sandbox="sbx-2"), letter("msg-1", project="p2")]
)
async def test_what_is_no_message_to_this_sandbox_is_passed_over(inbox: Inbox, document: bytes) -> None:
    """It gets no receipt, and the next one is served."""
    agent = Agent()
    inbox.ready(agent)
    assert await inbox.take(document) is None
    await inbox.take(letter("msg-1"))
    assert agent.heard == ["x"]


def test_a_torn_last_line_of_the_list_is_no_message(tmp_path: Path) -> None:
    """Half an id would name another message."""
    (tmp_path / "injected").write_bytes(b"msg-1\nmsg-12")
    known = Injected(tmp_path / "injected")
    assert known.receipt("msg-1") is not None
    assert known.receipt("msg-12") is None
