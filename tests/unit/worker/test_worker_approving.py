"""Leave to use a tool: what the task's policy says, and what becomes of what it leaves open."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.delivery import ApprovalAnswer, InboxMessage
from sandherd.contracts.harnesses import Approvals, Verdict
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.approving import Desk, policy
from sandherd_worker.harnesses.base import CannotTakeError
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
def test_the_most_exact_rule_counts(tool: str, verdict: Verdict) -> None:
    """A name before a pattern, a long pattern before a short one, the stricter of two alike; else the rule for all."""
    tools: dict[str, Verdict] = {
        "Bash": "ask",
        "mcp__*": "allow",
        "mcp__git__*": "ask",
        "mcp__git__push": "deny",
        "a?": "deny",
        "?b": "allow",
    }
    assert policy(Approvals(tools=tools), tool) == verdict


def test_what_is_not_named_follows_the_rule_for_all() -> None:
    """Whichever it is."""
    for said in ("allow", "ask", "deny"):
        assert policy(Approvals(otherwise=said, tools={"X": "allow"}), "Read") == said


class Asker:
    """Takes down what is decided."""

    def __init__(self) -> None:
        self.decided: list[tuple[str, bool, str | None]] = []

    async def decide(self, question: str, granted: bool, reason: str | None) -> None:
        self.decided.append((question, granted, reason))


@pytest.fixture
def asker() -> Asker:
    return Asker()


@pytest.fixture
async def desk(listener: Any, asker: Asker) -> AsyncIterator[Desk]:
    desk = Desk(Approvals(tools={"Bash": "ask", "Web": "deny"}), listener.say, asker.decide)
    yield desk
    await desk.close()


def answer(approval_id: str, *, granted: bool, reason: str | None = None) -> InboxMessage:
    now = datetime.now(UTC)
    said = ApprovalAnswer(approval_id=approval_id, granted=granted, reason=reason)
    return InboxMessage(
        message="msg-1",
        project="p1",
        sandbox="sbx-1",
        content=said.model_dump_json(),
        message_type="approval",
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


async def test_what_the_policy_decides_is_asked_of_nobody(
    desk: Desk, asker: Asker, listener: Any, eventually: Any
) -> None:
    """Allowed or denied at once, without an event."""
    await desk.ask("q1", "Read", {}, None, 1)
    await desk.ask("q2", "Web", {}, None, 1)
    await eventually(lambda: len(asker.decided) == 2, "both are decided")
    assert asker.decided == [("q1", True, None), ("q2", False, "the task does not allow this tool")]
    assert listener.events == []


async def test_what_it_leaves_open_waits_for_an_answer(desk: Desk, asker: Asker, listener: Any) -> None:
    """The question is an event with a name of ours, its time-out and what holds after it; the first answer counts."""
    await desk.ask("q1", "Bash", {"command": "ls"}, "to look", 3)
    (asked,) = listener.events
    assert (asked.type, asked.tool, asked.input, asked.turn) == (
        "agent.approval_requested",
        "Bash",
        {"command": "ls"},
        3,
    )
    assert (asked.timeout_seconds, asked.on_timeout, asked.reason) == (3600, "deny", "to look")
    await desk.answer(answer(asked.approval_id, granted=True, reason="go on"))
    assert asker.decided == [("q1", True, "go on")]
    with pytest.raises(CannotTakeError, match="nobody waits"):
        await desk.answer(answer(asked.approval_id, granted=False))


@pytest.mark.parametrize("default", ["allow", "deny"])
async def test_nobodys_answer_is_the_stated_default(
    default: Any, asker: Asker, listener: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time-out; an answer that comes later is refused."""
    desk = Desk(Approvals(otherwise="ask", timeout_seconds=1, on_timeout=default), listener.say, asker.decide)
    await desk.ask("q1", "Bash", {}, None, 1)
    await eventually(lambda: asker.decided, "the time is over")
    assert asker.decided == [("q1", default == "allow", "nobody answered within 1 s")]
    with pytest.raises(CannotTakeError, match="nobody waits"):
        await desk.answer(answer(listener.events[0].approval_id, granted=True))
    await desk.close()


async def test_without_a_time_out_it_waits_as_long_as_it_lives(asker: Asker, listener: Any) -> None:
    """The event says so, and no timer runs."""
    desk = Desk(Approvals(otherwise="ask", timeout_seconds=None), listener.say, asker.decide)
    await desk.ask("q1", "Bash", {}, None, 1)
    assert (listener.events[0].timeout_seconds, listener.events[0].on_timeout) == (None, None)
    await desk.close()


async def test_a_turn_that_ends_takes_its_questions_with_it(desk: Desk, asker: Asker, listener: Any) -> None:
    """That is said, with the reason; the answer is refused, and so is what is no answer."""
    await desk.ask("q1", "Bash", {}, None, 1)
    await desk.withdraw(1)
    asked, withdrawn = listener.events
    assert (withdrawn.type, withdrawn.approval_id) == ("agent.approval_withdrawn", asked.approval_id)
    assert (withdrawn.turn, withdrawn.reason) == (1, "the agent's turn is over")
    await desk.withdraw(2)
    assert len(listener.events) == 2
    with pytest.raises(CannotTakeError, match="nobody waits"):
        await desk.answer(answer(listener.events[0].approval_id, granted=True))
    with pytest.raises(CannotTakeError, match="no answer"):
        await desk.answer(answer("x", granted=True).model_copy(update={"content": "yes"}))
    await asyncio.sleep(0)
    assert asker.decided == []


async def test_what_is_decided_is_not_withdrawn(desk: Desk, asker: Asker, listener: Any) -> None:
    """Neither what was answered nor what the policy decides; only what still waits."""
    await desk.ask("q1", "Bash", {}, None, 1)
    await desk.answer(answer(listener.events[0].approval_id, granted=True))
    await desk.withdraw(1)
    assert listener.types() == ["approval_requested"]


async def test_a_worker_that_ends_its_agent_withdraws_nothing(asker: Asker, listener: Any) -> None:
    """What waits then waits on: the agent of the next attempt may ask the same, be it a person's word or leave."""
    desk = Desk(Approvals(otherwise="ask"), listener.say, asker.decide, lambda: True)
    await desk.ask("q1", "Bash", {}, None, 1)
    person = asyncio.create_task(desk.ask_person("which branch?", 1))
    while desk.waiting < 2:
        await asyncio.sleep(0)
    person.cancel()
    await asyncio.wait([person])
    await desk.withdraw(1)
    await desk.close()
    assert listener.types() == ["approval_requested", "approval_requested"]


async def test_a_person_who_is_asked_no_more_is_told(desk: Desk, listener: Any) -> None:
    """As when the agent's own patience with the tool is over."""
    person = asyncio.create_task(desk.ask_person("which branch?", 4))
    while len(listener.events) < 1:
        await asyncio.sleep(0)
    person.cancel()
    await asyncio.wait([person])
    asked, withdrawn = listener.events
    assert (withdrawn.type, withdrawn.approval_id, withdrawn.turn) == (
        "agent.approval_withdrawn",
        asked.approval_id,
        4,
    )


@pytest.mark.parametrize("seconds", [None, 3600])
async def test_a_question_that_can_not_be_shown_is_answered_with_no(
    asker: Asker, seconds: int | None, spool: Spool, emitter: Emitter, eventually: Any
) -> None:
    """Nobody can be asked what nobody can read: the agent is told at once, and doesn't wait for ever."""
    desk = Desk(Approvals(otherwise="ask", timeout_seconds=seconds), emitter.emit, asker.decide)
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"a": deep}
    await desk.ask("q1", "Bash", deep, None, 1)
    await eventually(lambda: asker.decided, "it is answered")
    assert asker.decided == [("q1", False, "nobody can be asked: what it is to be used with can't be shown")]
    assert desk.waiting == 0
    await desk.ask("q2", "Bash", {"command": "x" * 500_000}, "y" * 500_000, 1)
    assert desk.waiting == 1
    await desk.close()
