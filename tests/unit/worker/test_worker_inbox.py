"""The inbox without a broker: each message reaches the agent once, in order, or is rejected with a reason."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.base import MessageRefusedError
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.spool import Spool


class Agent:
    def __init__(self) -> None:
        self.received: list[str] = []
        self.refuses: str | None = None

    async def inject(self, message: InboxMessage) -> None:
        if self.refuses:
            raise MessageRefusedError(self.refuses)
        if message.message_type == "interrupt":
            await self.interrupt(message.message)
        self.received.append(message.content)

    async def interrupt(self, message: str | None = None, /) -> None:
        self.received.append(f"(stop for {message})")


SENT = datetime.now(UTC)


def letter(name: str, content: str = "x", **fields: Any) -> bytes:
    given = {
        "project": "p1",
        "sandbox": "sbx-1",
        "message_type": "user_message",
        "sent_at": SENT,
        "expires_at": SENT + timedelta(hours=1),
        **fields,
    }
    return InboxMessage(message=name, content=content, **given).model_dump_json().encode()


class Clock:
    """The time, which passes when a test says so."""

    def __init__(self) -> None:
        self.now = SENT

    def __call__(self) -> datetime:
        return self.now

    def pass_by(self, **time: int) -> None:
        self.now += timedelta(**time)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def inbox(emitter: Emitter, tmp_path: Path, assignment: Any, clock: Clock) -> Inbox:
    return Inbox(assignment(tmp_path), emitter, DeliveredMessages(tmp_path / "injected"), clock)


async def test_message_is_injected_once_however_often_delivered(
    inbox: Inbox, spool: Spool, published_of: Any, tmp_path: Path, emitter: Emitter, assignment: Any
) -> None:
    """Each delivery has the same receipt, also after a restart of the worker."""
    agent = Agent()
    inbox.ready(agent)
    for _ in range(3):
        receipt = await inbox.deliver(letter("msg-1"))
        assert receipt is not None
        assert receipt.outcome == "acknowledged"
    again = Inbox(assignment(tmp_path), emitter, DeliveredMessages(tmp_path / "injected"))
    again.close("the agent is gone")
    receipt = await again.deliver(letter("msg-1"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"
    assert agent.received == ["x"]
    assert [event.type for event in published_of(spool)] == ["agent.message_injected"]


async def test_answer_with_the_name_of_a_message_is_injected(inbox: Inbox) -> None:
    """Names of messages and answers are separate."""
    agent = Agent()
    inbox.ready(agent)
    for document in (letter("msg-1"), letter("msg-1", "{}", message_type="approval")):
        receipt = await inbox.deliver(document)
        assert receipt is not None
        assert receipt.outcome == "acknowledged"
    assert agent.received == ["x", "{}"]


async def test_name_that_is_used_again_is_another_message(inbox: Inbox) -> None:
    """A name may be used again some time after its message has ended. The later message is a different one."""
    agent = Agent()
    inbox.ready(agent)
    for sent_at in (SENT, SENT + timedelta(days=2), SENT):
        await inbox.deliver(letter("msg-1", str(sent_at), sent_at=sent_at))
    assert agent.received == [str(SENT), str(SENT + timedelta(days=2))]


async def test_message_with_a_source_is_identified_by_it(inbox: Inbox) -> None:
    """An agent may choose the name of another message, and its worker may publish what it sends twice."""
    agent = Agent()
    inbox.ready(agent)
    source = "/sandherd/message-relay/sbx-2/{}"
    for token, sent_at in (("a", SENT), ("a", SENT + timedelta(hours=1)), ("b", SENT)):
        await inbox.deliver(letter("msg-1", token, source=source.format(token), sent_at=sent_at))
    await inbox.deliver(letter("msg-1", "c"))
    assert agent.received == ["a", "b", "c"]


async def test_messages_wait_for_the_agent_in_order(inbox: Inbox) -> None:
    """A message before the agent is ready is neither lost nor rejected."""
    agent = Agent()
    waiting = [asyncio.ensure_future(inbox.deliver(letter(f"msg-{number}", str(number)))) for number in range(5)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    inbox.ready(agent)
    await asyncio.gather(*waiting)
    assert agent.received == ["0", "1", "2", "3", "4"]


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


async def test_decision_overtakes_an_unaccepted_message(inbox: Inbox) -> None:
    """An agent that waits for an approval accepts no message, so the decision may not wait behind one."""
    agent = Busy()
    inbox.ready(agent)
    waiting = asyncio.ensure_future(inbox.deliver(letter("msg-1", "later")))
    await agent.waits.wait()
    receipt = await inbox.deliver(letter("msg-2", "yes", message_type="approval"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"
    await waiting
    assert agent.received == ["yes", "later"]


async def test_interrupt_stops_the_turn_that_a_message_waits_for(inbox: Inbox) -> None:
    """An interrupt stops the turn once however often it is delivered.

    Both stops name the message, as the agent may know it already.
    """
    agent = Busy()
    inbox.ready(agent)
    waiting = asyncio.ensure_future(inbox.deliver(letter("msg-1", "first")))
    await agent.waits.wait()
    stop = letter("msg-2", "second", message_type="interrupt")
    receipts = await asyncio.gather(inbox.deliver(stop), inbox.deliver(stop), waiting)
    assert [receipt and receipt.outcome for receipt in receipts] == ["acknowledged"] * 3
    assert agent.received == ["(stop for msg-2)", "first", "(stop for msg-2)", "second"]


async def test_refused_message_is_rejected_with_the_agents_reason(
    inbox: Inbox, spool: Spool, published_of: Any
) -> None:
    """No injection is published, and no later delivery changes the receipt."""
    agent = Agent()
    agent.refuses = reason = "the program has closed its standard input"
    inbox.ready(agent)
    first, meanwhile = await asyncio.gather(inbox.deliver(letter("msg-1")), inbox.deliver(letter("msg-1")))
    agent.refuses = None
    for receipt in (first, meanwhile, await inbox.deliver(letter("msg-1"))):
        assert receipt is not None
        assert (receipt.outcome, receipt.reason) == ("rejected", reason)
    assert (published_of(spool), agent.received) == ([], [])
    receipt = await inbox.deliver(letter("msg-2"))
    assert receipt is not None
    assert receipt.outcome == "acknowledged"


async def test_message_that_expires_in_the_inbox_is_rejected(inbox: Inbox, clock: Clock) -> None:
    """The wait may be for the agent or behind another message: the sender was notified of the expiry."""
    agent = Busy()
    early = asyncio.ensure_future(inbox.deliver(letter("msg-1", "too early")))
    await asyncio.sleep(0)
    clock.pass_by(hours=1, seconds=1)
    inbox.ready(agent)
    receipts = [await early]
    late = clock.now + timedelta(hours=3)
    waiting = asyncio.ensure_future(inbox.deliver(letter("msg-2", "in time", expires_at=late)))
    await agent.waits.wait()
    soon = clock.now + timedelta(hours=1)
    behind = asyncio.ensure_future(inbox.deliver(letter("msg-3", "too late", expires_at=soon)))
    await asyncio.sleep(0)
    clock.pass_by(hours=2)
    agent.free.set()
    await waiting
    receipts.append(await behind)
    assert [receipt and (receipt.outcome, receipt.reason) for receipt in receipts] == [
        ("rejected", "it expired before the agent could take it")
    ] * 2
    assert agent.received == ["in time"]


async def test_expired_interrupt_stops_nothing(inbox: Inbox, clock: Clock) -> None:
    """An expired interrupt neither overtakes nor runs in its turn; one accepted in time keeps its receipt."""
    agent = Busy()
    inbox.ready(agent)
    taken = letter("msg-1", "first", message_type="interrupt")
    await inbox.deliver(taken)
    clock.pass_by(minutes=30)
    waiting = asyncio.ensure_future(inbox.deliver(letter("msg-2", "waits", expires_at=clock.now + timedelta(hours=1))))
    agent.free.clear()
    await agent.waits.wait()
    clock.pass_by(minutes=31)
    late = asyncio.ensure_future(inbox.deliver(letter("msg-3", "second", message_type="interrupt")))
    await asyncio.sleep(0)
    agent.free.set()
    receipts = [await late, await inbox.deliver(taken), await waiting]
    assert [receipt and receipt.outcome for receipt in receipts] == ["rejected", "acknowledged", "acknowledged"]
    assert not any(receipt and receipt.agent_gone for receipt in receipts)
    assert agent.received == ["(stop for msg-1)", "first", "waits"]


async def test_messages_after_the_end_are_rejected(inbox: Inbox) -> None:
    """Waiting messages are rejected too, with the reason."""
    waiting = asyncio.ensure_future(inbox.deliver(letter("msg-1")))
    await asyncio.sleep(0)
    inbox.close("the agent has ended")
    for receipt in (await waiting, await inbox.deliver(letter("msg-2"))):
        assert receipt is not None
        assert (receipt.outcome, receipt.reason, receipt.agent_gone) == ("rejected", "the agent has ended", True)


async def test_interrupt_publishes_interrupted_then_injected(inbox: Inbox, spool: Spool, published_of: Any) -> None:
    """`agent.interrupted` precedes `agent.message_injected`, with the sender."""
    inbox.ready(Agent())
    await inbox.deliver(letter("msg-1", "stop that", message_type="interrupt", sender_id="ann"))
    events = published_of(spool)
    assert [event.type for event in events] == ["agent.interrupted", "agent.message_injected"]
    assert (events[0].data.reason, events[1].data.sender_id, events[1].data.intervention_number) == (
        "stop that",
        "ann",
        1,
    )


@pytest.mark.parametrize(
    "document", [b"", b"{}", b"\xff", letter("msg-1", sandbox="sbx-2"), letter("msg-1", project="p2")]
)
async def test_invalid_delivery_gets_no_receipt(inbox: Inbox, document: bytes) -> None:
    """An invalid document is skipped, and the next message is delivered."""
    agent = Agent()
    inbox.ready(agent)
    assert await inbox.deliver(document) is None
    await inbox.deliver(letter("msg-1"))
    assert agent.received == ["x"]


def test_torn_last_line_of_the_list_is_ignored(tmp_path: Path) -> None:
    """An incomplete last id is ignored, because it could be the id of another message."""
    (tmp_path / "injected").write_bytes(b"msg-1\nmsg-12")
    known = DeliveredMessages(tmp_path / "injected")
    assert "msg-1" in known
    assert "msg-12" not in known
