"""Approvals in the history, as stored and as requested by clients."""

from datetime import timedelta
from itertools import permutations
from typing import Any

import pytest

from event_ingest.queries.approvals import list_approvals
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import ListApprovals
from sandherd.contracts.states import ApprovalState, MessageState

MAX_BYTES = 1_000_000
WAITING = ApprovalState.PENDING


async def requested(history: Any, project: str = "default", max_bytes: int = MAX_BYTES, **question: Any) -> Any:
    async with history.database.reading() as connection:
        return await list_approvals(connection, ListApprovals(**question), project, max_bytes)


async def names(history: Any, project: str = "default", **question: Any) -> list[str]:
    return [view.approval_id for view in (await requested(history, project, **question)).approvals]


async def test_waiting_approval_shows_everything_needed_to_decide(history: Any, script: Any) -> None:
    """A waiting approval shows agent, task, call, whole input, reason, time limit and default."""
    due = script.clock + timedelta(minutes=10)
    events = script.asking("sbx-1", "a1", reason="cleans up", expires_at=due, on_timeout="deny")
    await history.deliver([*script.life("task-1", "sbx-1"), *events])
    [view] = (await requested(history)).approvals
    assert (view.state, view.task, view.sandbox, view.approval_id) == (WAITING, "task-1", "sbx-1", "a1")
    assert (view.tool, view.input, view.reason) == ("Bash", {"command": "rm -r build"}, "cleans up")
    assert (view.requested_at, view.expires_at, view.on_timeout) == (events[1].time, due, "deny")
    assert view.decided_at is None


async def test_decided_approval_shows_who_decided_and_its_delivery(history: Any, script: Any) -> None:
    """A decided approval is granted, denied with its reason or expired with its default, with its delivery's state."""
    make_approval = script.approval
    reply = "/sandherd/message-relay/msg-2"
    await history.deliver([event for name in ("a1", "a2", "a3") for event in script.asking("sbx-1", name)])
    denied = make_approval("denied", "sbx-1", "a2", by="bob", reason="not that", answer="msg-2")
    await history.deliver([make_approval("granted", "sbx-1", "a1", by="ada", answer="msg-1"), denied])
    await history.deliver([make_approval("expired", "sbx-1", "a3", outcome="granted")])
    about = {"message_id": "msg-2", "message_type": "approval"}
    await history.deliver([script.emit("message.queued", "sbx-1", reply, content_length=1, **about)])
    await history.deliver([script.emit("message.rejected", "sbx-1", reply, reason="it timed out", **about)])
    third, second, first = (await requested(history)).approvals
    assert (first.state, first.decided_by, first.answer, first.answer_state) == ("granted", "ada", "msg-1", None)
    assert (second.state, second.decision_reason, second.decided_at) == ("denied", "not that", denied.time)
    assert (second.answer_state, second.answer_reason) == (MessageState.REJECTED, "it timed out")
    assert (third.state, third.outcome, third.decided_by) == ("expired", "granted", None)


async def test_order_of_approval_events_does_not_matter(history: Any, script: Any) -> None:
    """Every order of call, request and decision yields the same row, also when all are delivered twice."""
    expected = [
        [*script.asking("sbx-1", f"a{place}"), script.approval("granted", "sbx-1", f"a{place}", by="ada", answer="m")]
        for place in range(6)
    ]
    for events, order in zip(expected, permutations(range(3)), strict=True):
        for place in (*order, *order):
            await history.deliver([events[place]])
    views = (await requested(history)).approvals
    assert len(views) == 6
    for view, events in zip(reversed(views), expected, strict=True):
        assert (view.state, view.requested_at, view.decided_at) == ("granted", events[1].time, events[2].time)
        assert (view.decided_by, view.input) == ("ada", {"command": "rm -r build"})


async def test_approvals_are_filtered_by_sandbox_name_and_state(history: Any, script: Any) -> None:
    """Approvals of another project never match; the same name in two sandboxes is two approvals."""
    expected = [*script.asking("sbx-1", "a1"), *script.asking("sbx-2", "a1"), *script.asking("sbx-2", "a2")]
    expected += [script.approval("denied", "sbx-1", "a1"), *script.asking("sbx-9", "other", project="p2")]
    await history.deliver(expected)
    assert await names(history) == ["a2", "a1", "a1"]
    assert await names(history, "fleet") == ["other", "a2", "a1", "a1"]
    assert await names(history, state=WAITING) == ["a2", "a1"]
    assert await names(history, sandbox="sbx-1") == ["a1"]
    assert await names(history, sandbox="sbx-1", state=WAITING) == []
    assert await names(history, approval_id="a2") == ["a2"]
    assert await names(history, "p2", sandbox="sbx-1") == []


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_pages_contain_each_approval_once(history: Any, script: Any, limit: int) -> None:
    """The newest approvals come first, each once, also if many were requested at one moment with one name."""
    expected = [event for place in range(5) for name in ("a", "b") for event in script.asking(f"sbx-{place}", name)]
    at = script.clock
    await history.deliver([event.model_copy(update={"time": at}) for event in expected])
    seen, cursor = [], None
    while True:
        page = await requested(history, limit=limit, cursor=cursor)
        seen += [(view.sandbox, view.approval_id) for view in page.approvals]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(set(seen)) == len(seen) == 10
    with pytest.raises(ContractError) as caught:
        await requested(history, cursor="nonsense")
    assert caught.value.problem.code is Code.INVALID_FIELD


async def test_large_inputs_fit_their_pages(history: Any, script: Any) -> None:
    """However large inputs are, each page fits, and no approval is left out."""
    for place, size in enumerate((1, 40, 2, 45, 3)):
        await history.deliver(script.asking("sbx-1", f"a{place}", input={"content": "é" * 1000 * size}))
    found: list[int] = []
    cursor = None
    while cursor is not None or not found:
        page = await requested(history, max_bytes=100_000, cursor=cursor)
        assert len(page.model_dump_json().encode()) < 100_000 + 100
        found += [len(view.input["content"]) for view in page.approvals]
        cursor = page.next_cursor
    assert found == [3000, 45_000, 2000, 40_000, 1000]


async def test_client_lists_the_approvals_of_its_project(running: Any, script: Any) -> None:
    """Over the real broker a client lists the waiting approvals of its project, and then their decisions."""
    expected = script.asking("sbx-1", "a1")
    await running.emit(expected)
    await running.stored(len(expected))
    [view] = (await running.ask(ListApprovals(state=WAITING), "default")).approvals
    assert (view.approval_id, view.input) == ("a1", {"command": "rm -r build"})
    await running.emit([script.approval("granted", "sbx-1", "a1", by="ada")])
    await running.stored(len(expected) + 1)
    assert (await running.ask(ListApprovals(state=WAITING), "default")).approvals == []
