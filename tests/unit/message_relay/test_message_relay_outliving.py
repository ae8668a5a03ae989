"""What decides whether an approval outlives its sandbox, without a broker."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from message_relay.asked import Asked, Asker, Ref, Whose, question_of
from message_relay.judging import LONGEST_WAIT, answered, inheriting, is_forgotten, lapsed, taken_over, withdrawn
from message_relay.outliving import outdated, whose
from message_relay.recorded import Recorded, RecordedTask, recorded_task
from message_relay.wording import addressed, message_of
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.delivery import ApprovalAnswer
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.states import ApprovalState, SandboxState, TaskState

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANSWER = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True, answered_by="ada")
FIRST = Asked(
    project="p1",
    sandbox="sbx-1",
    approval_id="a1",
    tool="Bash",
    asked_at=NOW,
    asked_in=UUID(int=1),
    expires_at=NOW + timedelta(seconds=60),
    task="task-1",
    life="l1",
    question="q",
)
SECOND = FIRST.model_copy(update={"sandbox": "sbx-2", "approval_id": "a2", "attempt": 2, "expires_at": None})
GIVEN = answered(FIRST, ANSWER, NOW)


def question(life: str = "l1", name: str = "sbx-1", **fields: Any) -> str | None:
    asked = {"tool": "Bash", "input": {"command": "ls"}, "approval_id": "a1"} | fields
    return question_of(AgentApprovalRequested(**asked), life, [name])


def test_the_same_question_is_the_same_tool_for_the_same_input() -> None:
    """Its reason, its name and the order of the input's members make no other of it; all else does."""
    same = question(input={"a": 1, "b": [2]})
    assert same == question(input={"b": [2], "a": 1}, approval_id="a9", reason="why not", timeout_seconds=1.0)
    others = [
        question(input={"a": 1, "b": [2, 3]}),
        question(input={"a": "1", "b": [2]}),
        question(input={"a": True, "b": [2]}),
        question(input={"a": 1, "b": [2]}, tool="Write"),
        question(input={"a": 1, "b": [2]}, life="l2"),
    ]
    assert len({same, *others}) == 6


def test_its_own_sandboxs_name_is_no_difference_and_anothers_is() -> None:
    """Also a name that begins like another; and nothing that an agent writes passes for its own name."""
    mine = question(name="sbx-1", input={"path": "/w/sbx-1/a"})
    assert mine == question(name="sbx-2", input={"path": "/w/sbx-2/a"})
    assert mine != question(name="sbx-2", input={"path": "/w/sbx-1/a"})
    assert mine != question(name="sbx-2", input={"path": "/w/\0/a"})
    asked = AgentApprovalRequested(approval_id="a1", tool="Bash", input={"path": "/w/sbx-11/a"})
    assert question_of(asked, "l1", ["sbx-1", "sbx-11"]) == mine


def test_what_is_not_there_whole_is_like_nothing_else() -> None:
    """Of a large input only the beginning stands in the event."""
    put_aside = ArtifactRef(artifact="x", subject="s", size=1, sha256="0" * 64, chunks=1)
    assert question(artifacts={"input.command": put_aside}) is None


@pytest.mark.parametrize(
    ("before", "taken"),
    [
        (FIRST, True),
        (GIVEN, True),
        (GIVEN.model_copy(update={"hand": "handing"}), False),
        (GIVEN.model_copy(update={"hand": "over"}), False),
        (GIVEN.model_copy(update={"hand": None}), False),
        (GIVEN.model_copy(update={"next": Ref(sandbox="sbx-9", approval_id="a9")}), False),
        (lapsed(FIRST, NOW, ended=True), False),
        (withdrawn(FIRST, "over", NOW), False),
        (withdrawn(GIVEN, "over", NOW), False),
    ],
    ids=["waits", "kept", "handing", "over", "not known", "taken", "ended", "withdrawn", "withdrawn when answered"],
)
def test_only_what_no_agent_has_heard_is_taken_over(before: Asked, taken: bool) -> None:
    """What waits, and an answer that surely no worker has got; each once, and before its time is up."""
    found = taken_over(before, SECOND.ref, NOW)
    assert (found is not None) == taken
    if found is not None:
        assert (found.next, found.waits) == (SECOND.ref, False)
        assert taken_over(found, SECOND.ref, NOW) is None
        assert taken_over(before, SECOND.ref, NOW + timedelta(seconds=60)) is None


def test_the_answer_is_inherited_and_not_the_end() -> None:
    """The new one is decided as the old one was, by the same message; what merely waited leaves nothing."""
    answered_before = taken_over(GIVEN, SECOND.ref, NOW)
    assert answered_before is not None
    heir = inheriting(SECOND, answered_before)
    assert heir is not None
    assert (heir.decision, heir.hand) == (GIVEN.decision, "kept")
    waited = taken_over(FIRST, SECOND.ref, NOW)
    assert waited is not None
    assert waited.decision is not None
    assert (waited.decision.state, waited.decision.outcome) == (ApprovalState.EXPIRED, "asked_again")
    assert inheriting(SECOND, waited) is None
    assert inheriting(heir, answered_before) is None


def test_an_agent_takes_back_its_question_or_the_use_of_its_answer() -> None:
    """Of what is over already it changes nothing, and of what was asked again since, it has no say."""
    waits, given = withdrawn(FIRST, "its turn is over", NOW), withdrawn(GIVEN, "its turn is over", NOW)
    assert waits is not None
    assert waits.decision is not None
    assert (waits.decision.outcome, waits.decision.reason) == ("withdrawn", "its turn is over")
    assert given is not None
    assert (given.decision, given.hand) == (GIVEN.decision, "over")
    for over in (waits, given, FIRST.model_copy(update={"next": SECOND.ref})):
        assert withdrawn(over, "again", NOW) is None


def test_an_answer_that_the_inbox_keeps_no_more_is_of_no_use() -> None:
    """A day after its longest wait; what waits for an answer has no such bound."""
    late = NOW + LONGEST_WAIT + timedelta(days=1)
    assert is_forgotten(GIVEN, late)
    assert not is_forgotten(GIVEN, late - timedelta(seconds=1))
    assert not is_forgotten(FIRST, late)


@pytest.mark.parametrize(
    ("last", "is_so"),
    [
        (None, False),
        (Asker(sandbox="sbx-1", approval_id="a1", attempt=1), False),
        (Asker(sandbox="sbx-1", approval_id="a0", attempt=1), True),
        (Asker(sandbox="sbx-2", approval_id="a2", attempt=2), True),
    ],
    ids=["not written yet", "itself", "in the same attempt", "in a later one"],
)
def test_the_last_that_asks_is_the_one_that_waits(last: Asker | None, is_so: bool) -> None:
    """A question is carried over once, however often an agent asks it."""
    assert outdated(FIRST, last) == is_so
    assert not outdated(SECOND, Asker(sandbox="sbx-1", approval_id="a1", attempt=1))


def test_whose_a_question_is_stands_in_both_records() -> None:
    """Only of the current attempt and the one before is it certain which life of the task they are of."""
    record = {"life": "l1", "state": "running", "sandbox": "sbx-2", "previous": {"sandbox": "sbx-1"}}
    task = recorded_task(record)
    known = Recorded(SandboxState.RUNNING, task="task-1", attempt=2, unit="sbx-pool")
    assert whose("sbx-2", known, task) == Whose("task-1", "l1", 2, ("sbx-2", "sbx-pool"))
    assert whose("sbx-1", known, task) is not None
    assert whose("sbx-0", known, task) is None
    assert whose("sbx-2", known, None) is None
    assert whose("sbx-2", Recorded(SandboxState.RUNNING), task) is None


@pytest.mark.parametrize("state", list(TaskState))
def test_a_task_goes_on_until_it_has_ended(state: TaskState) -> None:
    """Whether it waits, is being begun, or runs."""
    ended = {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED}
    assert recorded_task({"state": state.value}).goes_on == (state not in ended)
    assert recorded_task({}) == RecordedTask(TaskState.PENDING, "")


def test_an_answer_is_addressed_to_who_waits_for_it_now() -> None:
    """The same message in another sandbox, to the question as it is called there, and for as long as that waits."""
    command = wrap(
        ANSWER, ANSWER.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW
    )
    message = message_of(command, NOW, GIVEN)
    assert addressed(message, GIVEN) is message
    there = addressed(message, SECOND)
    assert (there.message, there.sandbox, there.sent_at) == ("msg-1", "sbx-2", message.sent_at)
    assert there.expires_at == NOW + LONGEST_WAIT
    told = ApprovalAnswer.model_validate(json.loads(there.content))
    assert (told.approval_id, told.granted) == ("a2", True)
