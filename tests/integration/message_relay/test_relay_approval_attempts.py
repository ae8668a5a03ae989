"""Approvals that pass to a later attempt or are withdrawn, on a real broker with one relay or two."""

from contextlib import AsyncExitStack
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.subjects import Principal

World = Any
DELIVERED = ["queued", "delivered", "acknowledged"]


class Agent:
    """A worker's agent, and the decisions that it has received."""

    def __init__(self, world: World, sandbox: str) -> None:
        self.worker = world.new_worker(sandbox)
        self.answers_received: list[tuple[str, bool]] = []
        self.worker.answers = self._receive

    def _receive(self, message: InboxMessage) -> bytes:
        answer = ApprovalAnswer.model_validate_json(message.content)
        self.answers_received.append((answer.approval_id, answer.granted))
        assert message.sandbox == self.worker.sandbox
        return bytes(self.worker.acknowledge(message))


async def at_work(world: World, stack: AsyncExitStack, sandbox: str) -> Agent:
    agent = Agent(world, sandbox)
    await stack.enter_async_context(world.worker(sandbox, agent.worker))
    return agent


async def published_about(world: World, approval: str) -> list[str]:
    events = (await world.stored("approval_id"))[approval]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    return [event["type"].removeprefix("approval.") for event in events]


async def requested(world: World, number: int, approval: str, **more: Any) -> None:
    """Begin an attempt whose agent requests an approval; the relay receives the request."""
    await world.attempt(number)
    await world.ask(f"sbx-{number}", approval, **more)
    await world.until(lambda: "requested" in world.approvals[approval])


async def waits(world: World, approval: str) -> bool:
    """Whether only its request was published, after relays have checked all approvals."""
    async with world.herd.bus(Principal.MESSAGE_RELAY):
        marker = f"marker-{approval}"
        await world.record("sbx-marker")
        await world.ask("sbx-marker", marker, timeout_seconds=0.0)
        await world.until(lambda: "expired" in world.approvals[marker])
    return bool(world.approvals[approval] == ["requested"])


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
async def test_decision_between_attempts_is_given_to_the_next(world: World, granted: bool, replicas: int) -> None:
    """After the loss of the worker and a user's decision, the next attempt's same request gets it at once."""
    async with AsyncExitStack() as stack:
        for _ in range(replicas):
            await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        assert await waits(world, "a1")
        answer = await world.decide("sbx-1", "a1", granted, answered_by="ada")
        await world.until_published(answer, "queued")
        second = Agent(world, "sbx-2")
        await stack.enter_async_context(world.worker("sbx-2", second.worker))
        await requested(world, 2, "a2")
        await world.until_published(answer, "acknowledged")
        published = (await world.stored())[answer]
        events = await world.stored("approval_id")
    word = "granted" if granted else "denied"
    assert second.answers_received == [("a2", granted)]
    assert [event["type"].removeprefix("approval.") for event in events["a1"]] == ["requested", word]
    assert [event["type"].removeprefix("approval.") for event in events["a2"]] == ["requested", word]
    assert (events["a2"][1]["data"]["answer"], events["a2"][1]["data"]["by"]) == (answer, "ada")
    assert {event["subject"] for event in published} == {"sbx-1"}
    assert [event["type"].removeprefix("message.") for event in published] == DELIVERED


@pytest.mark.parametrize("answered", ["a1", "a2"])
async def test_repeated_question_of_the_next_attempt_replaces_the_first(world: World, answered: str) -> None:
    """A decision on either request is delivered to the second attempt's agent."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2")
        await world.until(lambda: world.approvals["a1"] == ["requested", "expired"])
        answer = await world.decide("sbx-1" if answered == "a1" else "sbx-2", answered)
        await world.until_published(answer, "acknowledged")
        late = await world.decide("sbx-2" if answered == "a1" else "sbx-1", "a2" if answered == "a1" else "a1")
        await world.until_published(late, "rejected")
        events, rejected = await world.stored("approval_id"), (await world.stored())[late]
    assert second.answers_received == [("a2", True)]
    assert await published_about(world, "a2") == ["requested", "granted"]
    ended = events["a1"][1]["data"]
    assert (ended["outcome"], ended["reason"]) == ("asked_again", "requested again in sbx-2 as a2")
    assert rejected[0]["data"]["code"] == "conflict"
    assert "approval a2 of sbx-2 was granted" in rejected[0]["data"]["reason"]


async def test_used_approval_is_requested_again(world: World) -> None:
    """The lost agent had the decision, so the next attempt's request waits for a new one."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        async with world.worker("sbx-1", Agent(world, "sbx-1").worker):
            await requested(world, 1, "a1")
            await world.until_published(await world.decide("sbx-1", "a1"), "acknowledged")
        await world.lose(1)
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2")
        assert await waits(world, "a2")
        assert second.answers_received == []
        await world.until_published(await world.decide("sbx-2", "a2", False), "acknowledged")
    assert second.answers_received == [("a2", False)]


async def test_possibly_delivered_approval_is_requested_again(world: World, monkeypatch: Any) -> None:
    """The decision of a worker that was lost before its receipt is never used a second time."""
    monkeypatch.setattr("message_relay.inbox_delivery.RECEIPT_WITHIN", 0.2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        first = world.new_worker("sbx-1")
        first.answers = lambda _: None
        async with world.worker("sbx-1", first):
            await requested(world, 1, "a1")
            answer = await world.decide("sbx-1", "a1")
            await world.until(lambda: answer in first.handed)
        await world.lose(1)
        await world.until_published(answer, "rejected")
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2")
        assert await waits(world, "a2")
    assert second.answers_received == []


async def test_decision_for_a_dead_worker_is_given_to_the_next_attempt(world: World, monkeypatch: Any) -> None:
    """The broker has not noticed the kill yet: the relay probes the worker, and sends it nothing."""
    monkeypatch.setattr("message_relay.inbox_delivery.RECEIPT_WITHIN", 0.2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        dead = world.new_worker("sbx-1")
        dead.dead = True
        async with world.worker("sbx-1", dead):
            answer = await world.decide("sbx-1", "a1")
            await world.until(lambda: dead.knocked > 0)
            await world.lose(1)
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2")
        await world.until_published(answer, "acknowledged")
    assert (dead.handed, second.answers_received) == ([], [("a2", True)])


async def test_decision_refused_by_a_recovering_worker_is_given_to_the_next_attempt(world: World) -> None:
    """The refusal of a worker whose agent has ended does not end the decision; its sandbox was not known to be lost."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        recovering = world.new_worker("sbx-1")
        recovering.answers = recovering.is_gone
        async with world.worker("sbx-1", recovering):
            answer = await world.decide("sbx-1", "a1")
            await world.until(lambda: answer in recovering.handed)
            assert "rejected" not in world.published[answer]
        await world.lose(1)
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2")
        await world.until_published(answer, "acknowledged")
    assert second.answers_received == [("a2", True)]
    assert world.published[answer][-2:] == ["delivered", "acknowledged"]


@pytest.mark.parametrize(
    "other",
    [{"tool": "Write"}, {"input": {"command": "rm -r"}}, {"input": {"command": "rm", "cwd": "."}}],
    ids=["tool", "input", "more input"],
)
async def test_another_question_is_another_approval(world: World, other: dict[str, Any]) -> None:
    """Another tool or input needs its own approval, and the first approval still waits for the same request."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2", **other)
        assert await waits(world, "a2")
        assert (second.answers_received, world.published[answer]) == ([], ["queued"])
        await world.ask("sbx-2", "a3")
        await world.until_published(answer, "acknowledged")
    assert second.answers_received == [("a3", True)]


async def test_own_sandbox_in_a_path_makes_no_difference(world: World) -> None:
    """If agents see the host's paths, each attempt's work is in another folder, which makes no difference."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1", input={"path": "/herd/sbx-1/a.txt"})
        await world.lose(1)
        await world.until_published(await world.decide("sbx-1", "a1"), "queued")
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a2", input={"path": "/herd/sbx-2/a.txt"})
        await world.until(lambda: second.answers_received == [("a2", True)])


async def test_decision_waits_over_an_attempt_without_the_question(world: World) -> None:
    """The second of two lost workers ends before its agent's request: the third's agent gets the first decision."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        await world.attempt(2)
        await world.lose(2)
        third = await at_work(world, stack, "sbx-3")
        await requested(world, 3, "a3")
        await world.until_published(answer, "acknowledged")
    assert third.answers_received == [("a3", True)]


async def test_decision_passes_to_a_third_attempt(world: World) -> None:
    """The worker of the second attempt was lost before it got the decision; the third gets it."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        answer = await world.decide("sbx-1", "a1")
        await requested(world, 2, "a2")
        await world.until(lambda: world.approvals["a2"] == ["requested", "granted"])
        await world.lose(2)
        third = await at_work(world, stack, "sbx-3")
        await requested(world, 3, "a3")
        await world.until_published(answer, "acknowledged")
        assert await published_about(world, "a3") == ["requested", "granted"]
    assert third.answers_received == [("a3", True)]


@pytest.mark.parametrize("state", ["failed", "completed", "cancelled"])
async def test_open_approvals_end_with_their_task(world: World, state: str) -> None:
    """An undecided approval expires, and an undelivered decision is rejected, with the reason."""
    async with world.relay().running():
        await requested(world, 1, "a1")
        await world.ask("sbx-1", "a2", tool="Write")
        await world.until(lambda: "requested" in world.approvals["a2"])
        await world.lose(1)
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        assert await waits(world, "a2")
        await world.record_task(state=state, attempt=2, previous={"sandbox": "sbx-1", "attempt": 1})
        await world.until(lambda: world.approvals["a2"] == ["requested", "expired"])
        await world.until_published(answer, "rejected")
        late = await world.decide("sbx-1", "a2")
        await world.until_published(late, "rejected")
        events, messages = await world.stored("approval_id"), await world.stored()
    assert events["a2"][1]["data"]["outcome"] == "ended"
    reason = "sandbox sbx-1 is terminated (worker_lost): attempt 1 of task-1 has ended"
    assert messages[answer][-1]["data"]["reason"] == messages[late][0]["data"]["reason"] == reason


async def test_time_out_applies_between_attempts(world: World) -> None:
    """An undecided approval expires with its default; the next attempt's request is new, with its own time-out."""
    async with world.relay().running():
        await requested(world, 1, "a1", timeout_seconds=1.0, on_timeout="deny")
        await world.lose(1)
        await world.until(lambda: world.approvals["a1"] == ["requested", "expired"])
        await requested(world, 2, "a2", timeout_seconds=600.0)
        assert await waits(world, "a2")
        assert (await world.stored("approval_id"))["a1"][1]["data"]["outcome"] == "denied"


async def test_reused_task_name_requests_its_own_approval(world: World) -> None:
    """A task with a reused name is another task, to which earlier approvals do not apply."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        await world.lose(1)
        await world.until_published(await world.decide("sbx-1", "a1"), "queued")
        second = await at_work(world, stack, "sbx-2")
        await world.attempt(2, life="l2")
        await world.ask("sbx-2", "a2")
        assert await waits(world, "a2")
    assert second.answers_received == []


async def test_withdrawn_approval_expires_at_once(world: World) -> None:
    """The expiry has the reason; a later decision is rejected with it."""
    await world.record("sbx-1")
    async with world.relay().running(), world.worker("sbx-1") as worker:
        await world.ask("sbx-1", "a1")
        await world.withdraw("sbx-1", "a1")
        await world.until(lambda: world.approvals["a1"] == ["requested", "expired"])
        late = await world.decide("sbx-1", "a1")
        await world.until_published(late, "rejected")
        approvals, [rejected] = await world.stored("approval_id"), (await world.stored())[late]
    ended = approvals["a1"][1]["data"]
    assert (ended["outcome"], ended["reason"]) == ("withdrawn", "its turn is over")
    assert rejected["data"]["code"] == "conflict"
    assert rejected["data"]["reason"].startswith("approval a1 of sbx-1 was withdrawn at ")
    assert rejected["data"]["reason"].endswith(": its turn is over")
    assert worker.handed == []


async def test_withdrawn_approval_is_not_passed_to_the_next_attempt(world: World) -> None:
    """Whether it was decided or not, the next attempt requests its own approval."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.relay().running())
        await requested(world, 1, "a1")
        answer = await world.decide("sbx-1", "a1")
        await world.until_published(answer, "queued")
        await world.withdraw("sbx-1", "a1")
        await world.ask("sbx-1", "a2", tool="Write")
        await world.withdraw("sbx-1", "a2")
        await world.until(lambda: world.approvals["a2"] == ["requested", "expired"])
        await world.lose(1)
        await world.until_published(answer, "rejected")
        second = await at_work(world, stack, "sbx-2")
        await requested(world, 2, "a3")
        await world.ask("sbx-2", "a4", tool="Write")
        assert await waits(world, "a3")
        assert await waits(world, "a4")
    assert second.answers_received == []


async def test_withdrawal_applies_to_its_own_sandbox_only(world: World) -> None:
    """The same name in another sandbox is another approval; a decided approval stays decided."""
    await world.record("sbx-1")
    await world.record("sbx-2")
    async with world.relay().running(), world.worker("sbx-1"):
        await world.ask("sbx-1", "a1")
        await world.until(lambda: "requested" in world.approvals["a1"])
        await world.withdraw("sbx-2", "a1")
        await world.until_published(await world.decide("sbx-1", "a1"), "acknowledged")
        await world.withdraw("sbx-1", "a1")
        assert not await waits(world, "a1")
    assert world.approvals["a1"] == ["requested", "granted"]
