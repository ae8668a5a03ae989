"""What the relay decides, without a broker."""

from datetime import UTC, datetime, timedelta

import pytest

from message_relay.deciding import Ended, Step, accepted, ended, may_hear, may_say, next_step, passed_on
from message_relay.recorded import Recorded, recorded
from message_relay.saying import event_id, event_of
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.agent import AgentMessageSent
from sandherd.contracts.events.message import MessageAcknowledged
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState

IDS = DerivedIds(b"of the relays")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def command(expires: int = 60, said_at: datetime = NOW) -> Envelope[SendMessage]:
    data = SendMessage(message="msg-1", sandbox="sbx-1", content="hello", expires_seconds=expires)
    source = "/sandherd/client/x"
    return wrap(data, data.type, source=source, sequence=1, project="p1", subject="sbx-1", time=said_at)


def message(expires: int = 60) -> InboxMessage:
    return accepted(command(expires), NOW)


def test_a_senders_clock_decides_nothing() -> None:
    """A command from a clock that is a day behind is not expired at once: the broker's time counts."""
    taken = accepted(command(said_at=NOW - timedelta(days=1)), NOW)
    assert (taken.sent_at, taken.expires_at) == (NOW, NOW + timedelta(seconds=60))


@pytest.mark.parametrize(("after", "step"), [(59, Step.HAND), (60, Step.EXPIRE), (61, Step.EXPIRE)])
def test_a_message_is_handed_over_until_its_time_is_up(after: int, step: Step) -> None:
    """One second before it is handed over; at its time, and after, it has expired."""
    assert next_step(message(), NOW + timedelta(seconds=after), None) is step


def test_a_sandbox_that_is_gone_rejects_even_what_has_expired() -> None:
    """The stronger reason is the one that is said."""
    assert next_step(message(), NOW + timedelta(days=1), Ended("gone")) is Step.REJECT


@pytest.mark.parametrize("state", list(SandboxState))
def test_only_an_ended_or_unknown_sandbox_takes_no_messages(state: SandboxState) -> None:
    """One that is being made, is paused or is stopping may still get its messages; its worker decides."""
    assert (ended("sbx-1", Recorded(state, "task-1")) is not None) == (state in SANDBOX_ENDED)
    assert ended("sbx-1", None) == Ended("there is no sandbox sbx-1")


@pytest.mark.parametrize("state", list(SandboxState))
def test_where_no_agent_is_nobody_hears(state: SandboxState) -> None:
    """A sandbox without a task takes no message in any state, and the reason says so or that it has ended."""
    gone = ended("sbx-1", Recorded(state))
    assert gone is not None
    assert ("no agent in sandbox sbx-1" in gone.reason) == (state not in SANDBOX_ENDED)


def test_the_reason_names_the_attempt_that_is_over() -> None:
    """Whoever spoke to the sandbox of an attempt that failed learns that, and why it ended."""
    gone = ended("sbx-1", Recorded(SandboxState.TERMINATED, "task-7", 2, "dead"))
    assert gone == Ended("sandbox sbx-1 is terminated (dead): attempt 2 of task-7 is over")


@pytest.mark.parametrize("state", list(SandboxState))
def test_only_a_frozen_worker_is_not_spoken_to(state: SandboxState) -> None:
    """It would hear the message when it goes on, perhaps long after the message was said to have expired."""
    assert may_hear(Recorded(state, "task-1")) == (state is not SandboxState.PAUSED)


def test_a_record_is_read_without_what_is_at_its_default() -> None:
    """The spawner writes neither the first state, nor the first attempt, nor the lack of a task."""
    assert recorded({"sandbox": "sbx-1"}) == Recorded(SandboxState.REQUESTED)
    whole = {"state": "failed", "task": "task-1", "attempt": 3, "reason": "dead", "more": []}
    assert recorded(whole) == Recorded(SandboxState.FAILED, "task-1", 3, "dead")


def test_a_step_that_is_done_twice_is_one_event() -> None:
    """Said at another time, by another relay, the event has the same id, source and sequence."""
    said = MessageAcknowledged(message_id="msg-1")
    first = event_of(IDS, message(), 3, said, NOW)
    second = event_of(IDS, message(), 3, said, NOW + timedelta(minutes=9))
    assert (first.id, first.source, first.sequence) == (second.id, second.source, second.sequence)
    assert len({event_id(IDS, message(), number) for number in (1, 2, 3)}) == 3


def said(recipient: str = "sbx-2", message_id: str = "msg-1") -> Envelope[AgentMessageSent]:
    data = AgentMessageSent(recipient=recipient, content="leave it", message_id=message_id)
    source = "/sandherd/sandbox/sbx-1"
    return wrap(data, data.type, source=source, sequence=1, project="p1", subject="sbx-1", time=NOW)


def test_an_agents_word_is_marked_as_one() -> None:
    """Its sender and its project are those that the broker has checked; it waits for an hour."""
    message = passed_on(said(), NOW)
    assert (message.project, message.sandbox, message.sender_id, message.message) == ("p1", "sbx-2", "sbx-1", "msg-1")
    assert message.content == "[MESSAGE FROM AGENT sbx-1] leave it"
    assert (message.message_type, message.expires_at - NOW) == ("user_message", timedelta(hours=1))


@pytest.mark.parametrize("names", [("sbx-2.x", "msg-1"), ("*", "msg-1"), ("", "msg-1"), ("sbx-2", "a.b")])
def test_a_name_that_leads_elsewhere_is_refused(names: tuple[str, str]) -> None:
    """No name opens another sandbox's tree, or another project's."""
    with pytest.raises(ContractError):
        passed_on(said(*names), NOW)


def test_nobody_talks_to_itself() -> None:
    """It would go on for ever."""
    assert may_say(passed_on(said("sbx-1"), NOW)) == "an agent can't send messages to itself"
    assert may_say(passed_on(said(), NOW)) is None
