"""A client waits for tasks that it has submitted before the spawner has read their commands."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.client import EventFollower, Herd, HerdError
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.client.herd import new_sandbox, task_spec
from sandherd.client.pending_creations import COMMAND_AGE
from sandherd.client.tasks.progress import TaskProgress
from sandherd.contracts.errors import Code
from sandherd.contracts.events.message import MessageRejected
from sandherd.contracts.events.task import TaskCompleted, TaskRefused, TaskSubmitted
from sandherd.contracts.requests import ListLiveTasks, ListPastSandboxes, ListPastTasks, TaskList, TaskView
from sandherd.contracts.requests.diagnostics import ConsumerBacklog, Examination, ExamineSpawner
from sandherd.contracts.states import TaskState
from sandherd.contracts.streams import STREAMS
from sandherd.contracts.subjects import Principal
from tests.polling import eventually

TASK = "task-one"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
IMPATIENT = FollowLimits(gap=20, silence=0.3, beginning=0, check=0.05, retry=0.02)
Neighbours = Any


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a task as unknown after the first request, unless it was submitted."""
    monkeypatch.setattr("sandherd.client.events.follower.FollowLimits", lambda: IMPATIENT)


def requested_twice(neighbours: Neighbours, request: type[Any], waiting: asyncio.Future[Any]) -> Callable[[], bool]:
    """Whether services received a second request for an unknown name, or the waiting has ended."""
    return lambda: sum(isinstance(requested, request) for requested in neighbours.requested) > 1 or waiting.done()


async def of_sandbox(following: EventFollower) -> list[str]:
    return [event.type async for event in following]


async def test_submitted_task_that_is_not_read_yet_is_waited_for(client: Herd, neighbours: Neighbours) -> None:
    """`wait` does not raise `not_found`, however long the spawner takes to read the command."""
    await client.submit("work", ["true"], task=TASK)
    waiting = asyncio.ensure_future(client.wait(TASK))
    await eventually(requested_twice(neighbours, ListPastTasks, waiting))
    await neighbours.begin()
    await neighbours.complete()
    assert (await waiting).state is TaskState.COMPLETED


async def test_name_that_was_never_submitted_is_not_found(client: Herd, neighbours: Neighbours) -> None:
    """A name is not found in any way to wait, also after another one was submitted."""
    await client.submit("work", ["true"], task=TASK)
    for waiting in (client.wait("task-two"), client.wait_all("task-two"), client.wait_all(TASK, "task-two")):
        with pytest.raises(HerdError) as raised:
            await waiting
        assert raised.value.problem.code is Code.NOT_FOUND


async def test_refusal_that_names_an_unknown_task_does_not_make_it_known(
    client: Herd, neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused approval of no sandbox, or cancellation of no task, does not make the task known."""
    rejected = MessageRejected(message_id="msg-1", message_type="approval", reason="there is no sandbox task-two")
    await neighbours.publish_event("message-relay/msg-1", rejected, entity="task-two")
    refused = TaskRefused(command="spawner.cancel_task", reason="there is no task task-two", code=Code.NOT_FOUND)
    await neighbours.publish_event("spawner/task-two/1", refused, entity="task-two")
    # Long enough that its events are read from the history before it counts as unknown.
    monkeypatch.setattr("sandherd.client.events.follower.FollowLimits", lambda: replace(IMPATIENT, beginning=1))
    with pytest.raises(HerdError) as raised:
        await client.wait("task-two")
    assert raised.value.problem.code is Code.NOT_FOUND


async def test_refusal_before_the_waiting_is_its_end(client: Herd, neighbours: Neighbours) -> None:
    """A submission whose name another task has raises its refusal, and does not wait for the other task."""
    await neighbours.begin()
    await client.submit("something else", ["true"], task=TASK)
    sent = await neighbours.take(Principal.SPAWNER)
    refused = TaskRefused(
        command=sent.type, command_id=str(sent.id), reason="there is another task", code=Code.CONFLICT, field="task"
    )
    await neighbours.publish_event(f"spawner/{TASK}/{sent.id.hex}", refused)
    with pytest.raises(HerdError, match="there is another task"):
        await client.wait(TASK)


async def test_created_sandbox_that_is_not_read_yet_is_followed(client: Herd, neighbours: Neighbours) -> None:
    """`follow` waits for the sandbox of an unread command."""
    name = new_sandbox()
    await client.create(sandbox=name, wait=False)
    following = asyncio.ensure_future(of_sandbox(client.follow(sandbox=name)))
    await eventually(requested_twice(neighbours, ListPastSandboxes, following))
    assert not following.done()
    following.cancel()


@pytest.mark.parametrize("by_label", [False, True])
async def test_submitted_tasks_that_are_not_read_yet_are_waited_for(
    client: Herd, neighbours: Neighbours, *, by_label: bool
) -> None:
    """`wait_all` includes tasks that this client has submitted, by name and by label, beside a known one."""
    labels = {"team": "web"}
    known = TaskView(project="default", task="task-old", state=TaskState.COMPLETED, submitted_at=datetime.now(UTC))
    old = known.model_copy(update={"labels": labels})
    await neighbours.answer(
        Principal.SPAWNER,
        ListLiveTasks,
        lambda requested: TaskList(tasks=[old] * (requested.task in {None, "task-old"})),
    )
    await client.submit(task_spec("work", ["true"], labels=labels), task=TASK)
    seen: list[list[str]] = []
    chosen: dict[str, Any] = {"labels": labels} if by_label else {}
    names = () if by_label else ("task-old", TASK)

    def on_progress(progress: TaskProgress) -> None:
        seen.append([outcome.state for outcome in progress.outcomes])

    waiting = asyncio.ensure_future(client.wait_all(*names, **chosen, on_progress=on_progress))
    await eventually(lambda: bool(seen) or waiting.done())
    assert seen[:1] == [["completed", "submitted"]]
    await neighbours.publish_event(
        neighbours.task_source, TaskSubmitted(task="work", harness="command", runtime="process")
    )
    await neighbours.publish_event(neighbours.task_source, TaskCompleted(sandbox="sbx-one"))
    assert [outcome.state for outcome in await waiting] == ["completed", "completed"]


async def test_submission_of_another_client_is_waited_for_while_commands_are_unread(
    client: Herd, neighbours: Neighbours
) -> None:
    """`wait_all` in another process than `submit` waits until the spawner has read the earlier commands."""
    unread = [1]
    examined: list[int] = []

    def examine(_request: ExamineSpawner) -> Examination:
        examined.append(unread[0])
        backlog = ConsumerBacklog(consumer="spawner-commands", pending=unread[0], unacknowledged=0, still_seconds=0)
        return Examination(service="spawner", version="1", instance="i", now=NOON, parts=[], waiting=[backlog])

    await neighbours.answer(Principal.SPAWNER, ExamineSpawner, examine)
    waiting = asyncio.ensure_future(client.wait_all(TASK))
    await eventually(lambda: len(examined) > 1 or waiting.done())
    assert not waiting.done()
    await neighbours.begin()
    await neighbours.complete()
    assert [outcome.state for outcome in await waiting] == ["completed"]
    unread[0] = 0
    with pytest.raises(HerdError) as raised:
        await client.wait_all("task-never")
    assert raised.value.problem.code is Code.NOT_FOUND


async def test_events_of_an_unknown_name_are_an_error(client: Herd, neighbours: Neighbours) -> None:
    """`events` raises `not_found` for an unknown name, and returns no events for a known or submitted one."""
    for unknown in (client.events(task="task-nope"), client.events(sandbox="sbx-nope")):
        with pytest.raises(HerdError) as raised:
            await anext(unknown)
        assert raised.value.problem.code is Code.NOT_FOUND
    await client.submit("work", ["true"], task="task-new")
    assert [event async for event in client.events(task="task-new")] == []
    await neighbours.begin()
    assert [event async for event in client.events(task=TASK, types=["agent.tool_use"])] == []


def test_commands_are_expected_as_long_as_they_are_stored() -> None:
    """A submission that the broker has deleted unread is no longer waited for."""
    ages = {stream.name: stream.max_age for stream in STREAMS}
    assert ages["COMMANDS"] == COMMAND_AGE.total_seconds()
