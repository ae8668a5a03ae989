"""Whether an approval passes to the next attempt, without a broker."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from message_relay.approval import Approval, ApprovalRef, AttemptRef, Requester, question_of
from message_relay.approval_carryover import attempt_of, outdated
from message_relay.approval_messages import addressed, message_of
from message_relay.approval_rules import (
    LONGEST_WAIT,
    answered,
    inheriting,
    is_answer_expired,
    lapsed,
    replaced,
    withdrawn,
)
from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.commands import AnswerApproval
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.inbox_messages import ApprovalAnswer
from sandherd.contracts.records import SharedSandboxRecord, SharedTaskRecord
from sandherd.contracts.states import ApprovalState, SandboxState, TaskState

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
ANSWER = AnswerApproval(message="msg-1", sandbox="sbx-1", approval_id="a1", granted=True, answered_by="ada")
FIRST = Approval(
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
    requested = {"tool": "Bash", "input": {"command": "ls"}, "approval_id": "a1"} | fields
    return question_of(AgentApprovalRequested(**requested), life, [name])


def test_same_question_is_the_same_tool_with_the_same_input() -> None:
    """Reason, id and order of the input's members do not matter; all else does."""
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


def test_own_sandbox_name_is_equal_and_another_differs() -> None:
    """A name with a common prefix differs too; and no text of an agent passes for its own name."""
    mine = question(name="sbx-1", input={"path": "/w/sbx-1/a"})
    assert mine == question(name="sbx-2", input={"path": "/w/sbx-2/a"})
    assert mine != question(name="sbx-2", input={"path": "/w/sbx-1/a"})
    assert mine != question(name="sbx-2", input={"path": "/w/\0/a"})
    requested = AgentApprovalRequested(approval_id="a1", tool="Bash", input={"path": "/w/sbx-11/a"})
    assert question_of(requested, "l1", ["sbx-1", "sbx-11"]) == mine


def test_truncated_question_equals_no_other() -> None:
    """The event has only the beginning of a large input."""
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
        (GIVEN.model_copy(update={"next": ApprovalRef(sandbox="sbx-9", approval_id="a9")}), False),
        (lapsed(FIRST, NOW, ended=True), False),
        (withdrawn(FIRST, "over", NOW), False),
        (withdrawn(GIVEN, "over", NOW), False),
    ],
    ids=["waits", "kept", "handing", "over", "not known", "taken", "ended", "withdrawn", "withdrawn when answered"],
)
def test_only_an_undelivered_approval_is_taken_over(before: Approval, taken: bool) -> None:
    """A waiting request, and a decision that no worker has received, are taken over once, before the time-out."""
    found = replaced(before, SECOND.ref, NOW)
    assert (found is not None) == taken
    if found is not None:
        assert (found.next, found.waits) == (SECOND.ref, False)
        assert replaced(found, SECOND.ref, NOW) is None
        assert replaced(before, SECOND.ref, NOW + timedelta(seconds=60)) is None


def test_decision_is_inherited_and_not_the_expiry() -> None:
    """The new approval is decided as the old one was, by the same message; a waiting one leaves nothing."""
    answered_before = replaced(GIVEN, SECOND.ref, NOW)
    assert answered_before is not None
    heir = inheriting(SECOND, answered_before)
    assert heir is not None
    assert (heir.decision, heir.hand) == (GIVEN.decision, "kept")
    waited = replaced(FIRST, SECOND.ref, NOW)
    assert waited is not None
    assert waited.decision is not None
    assert (waited.decision.state, waited.decision.outcome) == (ApprovalState.EXPIRED, "asked_again")
    assert inheriting(SECOND, waited) is None
    assert inheriting(heir, answered_before) is None


def test_withdrawal_ends_a_question_or_an_unused_decision() -> None:
    """The withdrawal changes nothing of an ended approval, nor of one that was requested again since."""
    waits, given = withdrawn(FIRST, "its turn is over", NOW), withdrawn(GIVEN, "its turn is over", NOW)
    assert waits is not None
    assert waits.decision is not None
    assert (waits.decision.outcome, waits.decision.reason) == ("withdrawn", "its turn is over")
    assert given is not None
    assert (given.decision, given.hand) == (GIVEN.decision, "over")
    for over in (waits, given, FIRST.model_copy(update={"next": SECOND.ref})):
        assert withdrawn(over, "again", NOW) is None


def test_decision_expires_with_its_inbox_message() -> None:
    """The bound is a day after the longest wait; a waiting approval has no such bound."""
    late = NOW + LONGEST_WAIT + timedelta(days=1)
    assert is_answer_expired(GIVEN, late)
    assert not is_answer_expired(GIVEN, late - timedelta(seconds=1))
    assert not is_answer_expired(FIRST, late)


@pytest.mark.parametrize(
    ("last", "is_so"),
    [
        (None, False),
        (Requester(sandbox="sbx-1", approval_id="a1", attempt=1), False),
        (Requester(sandbox="sbx-1", approval_id="a0", attempt=1), True),
        (Requester(sandbox="sbx-2", approval_id="a2", attempt=2), True),
    ],
    ids=["not written yet", "itself", "in the same attempt", "in a later one"],
)
def test_latest_requester_replaces_the_earlier(last: Requester | None, is_so: bool) -> None:
    """A question is carried over once, however often an agent repeats it."""
    assert outdated(FIRST, last) == is_so
    assert not outdated(SECOND, Requester(sandbox="sbx-1", approval_id="a1", attempt=1))


def test_life_of_a_question_is_read_from_both_records() -> None:
    """The life of the task is certain only for the current attempt and the one before."""
    before = Previous(attempt=1, sandbox="sbx-1")
    task = SharedTaskRecord(life="l1", state=TaskState.RUNNING, sandbox="sbx-2", previous=before)
    known = SharedSandboxRecord(state=SandboxState.RUNNING, task="task-1", attempt=2, unit="sbx-pool")
    assert attempt_of("sbx-2", known, task) == AttemptRef("task-1", "l1", 2, ("sbx-2", "sbx-pool"))
    assert attempt_of("sbx-1", known, task) is not None
    assert attempt_of("sbx-0", known, task) is None
    assert attempt_of("sbx-2", known, None) is None
    assert attempt_of("sbx-2", SharedSandboxRecord(state=SandboxState.RUNNING), task) is None


@pytest.mark.parametrize("state", list(TaskState))
def test_task_lives_until_it_has_ended(state: TaskState) -> None:
    """A pending, starting or running task has not ended."""
    ended = {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED}
    assert SharedTaskRecord(state=state, life="l1").ended == (state in ended)


def test_decision_is_addressed_to_the_current_requester() -> None:
    """The message goes to another sandbox, with the approval's id there, and that one's time limit."""
    command = wrap(
        ANSWER, ANSWER.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW
    )
    message = message_of(command, NOW, GIVEN)
    assert addressed(message, GIVEN) is message
    there = addressed(message, SECOND)
    assert (there.message, there.sandbox, there.sent_at) == ("msg-1", "sbx-2", message.sent_at)
    assert there.expires_at == NOW + LONGEST_WAIT
    answer_read = ApprovalAnswer.model_validate(json.loads(there.content))
    assert (answer_read.approval_id, answer_read.granted) == ("a2", True)
