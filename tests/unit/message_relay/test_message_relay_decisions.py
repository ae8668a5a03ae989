"""What the relay decides, without a broker."""

from datetime import UTC, datetime, timedelta

import pytest

from message_relay.delivery_rules import (
    DeliveryStep,
    NoRecipient,
    accepted,
    ended,
    is_reachable,
    next_step,
    passed_on,
    sender_refusal,
)
from message_relay.relay_events import event_id, event_of
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.events.message import MessageAcknowledged
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState

IDS = DerivedIds(b"of the relays")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def command(expires: int = 60, command_time: datetime = NOW) -> Envelope[SendMessage]:
    data = SendMessage(message="msg-1", sandbox="sbx-1", content="hello", expires_seconds=expires)
    source = "/sandherd/client/x"
    return wrap(data, data.type, source=source, sequence=1, project="p1", subject="sbx-1", time=command_time)


def message(expires: int = 60) -> InboxMessage:
    return accepted(command(expires), NOW)


def test_clock_of_the_sender_is_ignored() -> None:
    """A command from a clock that is a day behind is not expired at once: the broker's time counts."""
    taken = accepted(command(command_time=NOW - timedelta(days=1)), NOW)
    assert (taken.sent_at, taken.expires_at) == (NOW, NOW + timedelta(seconds=60))


@pytest.mark.parametrize(
    ("after", "step"), [(59, DeliveryStep.DELIVER), (60, DeliveryStep.EXPIRE), (61, DeliveryStep.EXPIRE)]
)
def test_message_is_delivered_until_it_expires(after: int, step: DeliveryStep) -> None:
    """One second before it is delivered; at its time, and after, it has expired."""
    assert next_step(message(), NOW + timedelta(seconds=after), None) is step


def test_ended_sandbox_rejects_even_expired_messages() -> None:
    """The stronger reason is published."""
    assert next_step(message(), NOW + timedelta(days=1), NoRecipient("gone")) is DeliveryStep.REJECT


@pytest.mark.parametrize("state", list(SandboxState))
def test_only_an_ended_or_unknown_sandbox_rejects_messages(state: SandboxState) -> None:
    """A sandbox that starts, is paused or stops may still get its messages; its worker decides."""
    assert (ended("sbx-1", SharedSandboxRecord(state=state, task="task-1")) is not None) == (state in SANDBOX_ENDED)
    assert ended("sbx-1", None) == NoRecipient("there is no sandbox sbx-1", Code.NOT_FOUND)


@pytest.mark.parametrize("state", list(SandboxState))
def test_sandbox_without_an_agent_rejects_messages(state: SandboxState) -> None:
    """A sandbox without a task rejects them in any state, with the reason."""
    gone = ended("sbx-1", SharedSandboxRecord(state=state))
    assert gone is not None
    assert ("no agent in sandbox sbx-1" in gone.reason) == (state not in SANDBOX_ENDED)


def test_rejection_names_the_ended_attempt() -> None:
    """The sender gets the attempt and the reason of its end."""
    record = SharedSandboxRecord(state=SandboxState.TERMINATED, task="task-7", attempt=2, reason="dead")
    gone = ended("sbx-1", record)
    assert gone == NoRecipient("sandbox sbx-1 is terminated (dead): attempt 2 of task-7 has ended")


@pytest.mark.parametrize("state", list(SandboxState))
def test_only_a_frozen_worker_is_unreachable(state: SandboxState) -> None:
    """A frozen worker would get the message at its resumption, perhaps long after its published expiry."""
    assert is_reachable(SharedSandboxRecord(state=state, task="task-1")) == (state is not SandboxState.PAUSED)


def test_repeated_step_is_one_event() -> None:
    """Published at another time, by another relay, the event has the same id, source and sequence."""
    message_sent = MessageAcknowledged(message_id="msg-1")
    first = event_of(IDS, message(), 3, message_sent, NOW)
    second = event_of(IDS, message(), 3, message_sent, NOW + timedelta(minutes=9))
    assert (first.id, first.source, first.sequence) == (second.id, second.source, second.sequence)
    assert len({event_id(IDS, message(), number) for number in (1, 2, 3)}) == 3


def message_sent(recipient: str = "sbx-2", message_id: str = "msg-1") -> Envelope[AgentMessageSent]:
    data = AgentMessageSent(recipient=recipient, content="leave it", message_id=message_id)
    source = "/sandherd/sandbox/sbx-1"
    return wrap(data, data.type, source=source, sequence=1, project="p1", subject="sbx-1", time=NOW)


def test_message_of_an_agent_has_its_sender() -> None:
    """Sender and project are those checked by the broker; the message waits for an hour."""
    message = passed_on(message_sent(), NOW)
    assert (message.project, message.sandbox, message.sender_id, message.message) == ("p1", "sbx-2", "sbx-1", "msg-1")
    assert message.content == "[MESSAGE FROM AGENT sbx-1] leave it"
    assert (message.message_type, message.expires_at - NOW) == ("user_message", timedelta(hours=1))


@pytest.mark.parametrize("names", [("sbx-2.x", "msg-1"), ("*", "msg-1"), ("", "msg-1"), ("sbx-2", "a.b")])
def test_name_that_leads_elsewhere_is_refused(names: tuple[str, str]) -> None:
    """No name opens another sandbox's tree, or another project's."""
    with pytest.raises(ContractError):
        passed_on(message_sent(*names), NOW)


def test_agent_cannot_message_itself() -> None:
    """The messages would go on for ever."""
    assert sender_refusal(passed_on(message_sent("sbx-1"), NOW)) == "an agent can't send messages to itself"
    assert sender_refusal(passed_on(message_sent(), NOW)) is None
