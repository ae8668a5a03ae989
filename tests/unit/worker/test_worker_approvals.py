"""Approvals of tool calls: the verdict of the task's policy, and open verdicts."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.harnesses import Approvals, Verdict
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.approvals import ApprovalGate, policy
from sandherd_worker.harnesses.base import MessageRefusedError
from sandherd_worker.spool import Spool


@pytest.mark.parametrize(
    ("tool", "verdict"),
    [
        ("Bash", "ask"),
        ("Read", "allow"),
        ("mcp__git__push", "deny"),
        ("mcp__git__log", "ask"),
        ("mcp__web__get", "allow"),
        ("mcp", "allow"),
        ("bash", "allow"),
        ("ab", "deny"),
    ],
)
def test_most_specific_rule_counts(tool: str, verdict: Verdict) -> None:
    """A name precedes a pattern, a long pattern a short one; of two with the same length, the stricter one applies."""
    tools: dict[str, Verdict] = {
        "Bash": "ask",
        "mcp__*": "allow",
        "mcp__git__*": "ask",
        "mcp__git__push": "deny",
        "a?": "deny",
        "?b": "allow",
    }
    assert policy(Approvals(tools=tools), tool) == verdict


def test_unnamed_tool_follows_the_default_verdict() -> None:
    """A tool that the policy does not name has the policy's `otherwise`."""
    for decision in ("allow", "ask", "deny"):
        assert policy(Approvals(otherwise=decision, tools={"X": "allow"}), "Read") == decision


class Asker:
    """Takes down what is decided."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, bool, str | None]] = []
        self.by_users: list[bool] = []

    async def decide(self, question: str, granted: bool, reason: str | None, by_user: bool) -> None:
        self.decided.append((question, granted, reason))
        self.by_users.append(by_user)


@pytest.fixture
def asker() -> Asker:
    return Asker()


@pytest.fixture
async def desk(listener: Any, asker: Asker) -> AsyncIterator[ApprovalGate]:
    desk = ApprovalGate(Approvals(tools={"Bash": "ask", "Web": "deny"}), listener.publish, asker.decide)
    yield desk
    await desk.close()


def answer(approval_id: str, *, granted: bool, reason: str | None = None) -> InboxMessage:
    now = datetime.now(UTC)
    decision = ApprovalAnswer(approval_id=approval_id, granted=granted, reason=reason)
    return InboxMessage(
        message="msg-1",
        project="p1",
        sandbox="sbx-1",
        content=decision.model_dump_json(),
        message_type="approval",
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


async def test_verdict_of_policy_needs_no_approval_event(
    desk: ApprovalGate, asker: Asker, listener: Any, eventually: Any
) -> None:
    """The policy allows or denies at once, without an event."""
    await desk.request_approval("q1", "Read", {}, None, 1)
    await desk.request_approval("q2", "Web", {}, None, 1)
    await eventually(lambda: len(asker.decided) == 2, "both are decided")
    assert asker.decided == [("q1", True, None), ("q2", False, "the task does not allow this tool")]
    assert asker.by_users == [False, False]
    assert listener.events == []


async def test_open_verdict_waits_for_a_decision(desk: ApprovalGate, asker: Asker, listener: Any) -> None:
    """The request is an event with its own id, time-out and default; the first decision counts."""
    await desk.request_approval("q1", "Bash", {"command": "ls"}, "to look", 3)
    (requested,) = listener.events
    assert (requested.type, requested.tool, requested.input, requested.turn) == (
        "agent.approval_requested",
        "Bash",
        {"command": "ls"},
        3,
    )
    assert (requested.timeout_seconds, requested.on_timeout, requested.reason) == (3600, "deny", "to look")
    await desk.answer(answer(requested.approval_id, granted=True, reason="go on"))
    assert asker.decided == [("q1", True, "go on")]
    assert asker.by_users == [True]
    with pytest.raises(MessageRefusedError, match="no longer pending"):
        await desk.answer(answer(requested.approval_id, granted=False))


@pytest.mark.parametrize("default", ["allow", "deny"])
async def test_unanswered_approval_gets_the_default(
    default: Any, asker: Asker, listener: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default applies after the time-out; a later decision is refused."""
    desk = ApprovalGate(
        Approvals(otherwise="ask", timeout_seconds=1, on_timeout=default), listener.publish, asker.decide
    )
    await desk.request_approval("q1", "Bash", {}, None, 1)
    await eventually(lambda: asker.decided, "the time is over")
    assert asker.decided == [("q1", default == "allow", "not answered within 1 s")]
    assert asker.by_users == [False]
    with pytest.raises(MessageRefusedError, match="no longer pending"):
        await desk.answer(answer(listener.events[0].approval_id, granted=True))
    await desk.close()


async def test_approval_without_time_out_waits_for_its_turn(asker: Asker, listener: Any) -> None:
    """The event has no time-out, and no timer runs."""
    desk = ApprovalGate(Approvals(otherwise="ask", timeout_seconds=None), listener.publish, asker.decide)
    await desk.request_approval("q1", "Bash", {}, None, 1)
    assert (listener.events[0].timeout_seconds, listener.events[0].on_timeout) == (None, None)
    await desk.close()


async def test_end_of_turn_withdraws_its_approvals(desk: ApprovalGate, asker: Asker, listener: Any) -> None:
    """The withdrawal is an event with the reason; a later or invalid decision is refused."""
    await desk.request_approval("q1", "Bash", {}, None, 1)
    await desk.withdraw(1)
    requested, withdrawn = listener.events
    assert (withdrawn.type, withdrawn.approval_id) == ("agent.approval_withdrawn", requested.approval_id)
    assert (withdrawn.turn, withdrawn.reason) == (1, "the agent's turn has ended")
    await desk.withdraw(2)
    assert len(listener.events) == 2
    with pytest.raises(MessageRefusedError, match="no longer pending"):
        await desk.answer(answer(listener.events[0].approval_id, granted=True))
    with pytest.raises(MessageRefusedError, match="not an answer"):
        await desk.answer(answer("x", granted=True).model_copy(update={"content": "yes"}))
    await asyncio.sleep(0)
    assert asker.decided == []


async def test_decided_approval_is_not_withdrawn(desk: ApprovalGate, asker: Asker, listener: Any) -> None:
    """Only a waiting request is withdrawn, not one decided by a user or the policy."""
    await desk.request_approval("q1", "Bash", {}, None, 1)
    await desk.answer(answer(listener.events[0].approval_id, granted=True))
    await desk.withdraw(1)
    assert listener.types() == ["approval_requested"]


async def test_worker_that_stops_its_agent_withdraws_nothing(asker: Asker, listener: Any) -> None:
    """Waiting approvals and questions stay open: the agent of the next attempt may repeat them."""
    desk = ApprovalGate(Approvals(otherwise="ask"), listener.publish, asker.decide, lambda: True)
    await desk.request_approval("q1", "Bash", {}, None, 1)
    person = asyncio.create_task(desk.request_answer("which branch?", 1))
    while desk.waiting < 2:
        await asyncio.sleep(0)
    person.cancel()
    await asyncio.wait([person])
    await desk.withdraw(1)
    await desk.close()
    assert listener.types() == ["approval_requested", "approval_requested"]


async def test_cancelled_question_to_a_user_is_withdrawn(desk: ApprovalGate, listener: Any) -> None:
    """A question whose tool call was cancelled is withdrawn by an event."""
    person = asyncio.create_task(desk.request_answer("which branch?", 4))
    while len(listener.events) < 1:
        await asyncio.sleep(0)
    person.cancel()
    await asyncio.wait([person])
    requested, withdrawn = listener.events
    assert (withdrawn.type, withdrawn.approval_id, withdrawn.turn) == (
        "agent.approval_withdrawn",
        requested.approval_id,
        4,
    )


@pytest.mark.parametrize("seconds", [None, 3600])
async def test_question_that_cannot_be_shown_is_denied(
    asker: Asker, seconds: int | None, spool: Spool, emitter: Emitter, eventually: Any
) -> None:
    """The agent gets the denial at once, and does not wait for a decision that can't come."""
    desk = ApprovalGate(Approvals(otherwise="ask", timeout_seconds=seconds), emitter.emit, asker.decide)
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    await desk.request_approval("q1", "Bash", deep, None, 1)
    await eventually(lambda: asker.decided, "it is answered")
    assert asker.decided == [("q1", False, "the tool's input can't be shown to a user")]
    assert desk.waiting == 0
    await desk.request_approval("q2", "Bash", {"command": "x" * 500_000}, "y" * 500_000, 1)
    assert desk.waiting == 1
    await desk.close()
