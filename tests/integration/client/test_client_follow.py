"""Following a task with a real broker: lost live events are recovered."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.client import EventFollower, Herd, HerdError, ServiceUnavailableError
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.client.events.sequencer import MissingRange
from sandherd.contracts.events.agent import AgentFailed
from sandherd.contracts.events.sandbox import SandboxRefused
from sandherd.contracts.events.task import TaskCancelled, TaskRejected, TaskRetryScheduled, TaskSubmitted
from sandherd.contracts.requests import ListEvents, ListLiveTasks, ListPastTasks
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TASK, SANDBOX, TASK_SOURCE = "task-one", "sbx-one", "spawner/task-one/0"
QUICK = FollowLimits(gap=20, silence=0.3, beginning=0.1, check=0.1, retry=0.02)
Neighbours = Any


async def received(following: EventFollower) -> list[str]:
    """All events to the end, as `<source's last part>#<sequence>`."""
    return [f"{event.source.removeprefix('/sandherd/')}#{event.sequence}" async for event in following]


def in_order(lines: list[str]) -> bool:
    """Whether each source counts from 1 without a gap."""
    by_source: dict[str, list[int]] = {}
    for line in lines:
        source, _, number = line.partition("#")
        by_source.setdefault(source, []).append(int(number))
    return all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_source.values())


async def test_fresh_task_is_followed_live(client: Herd, neighbours: Neighbours) -> None:
    """A follower that subscribed before the submission receives everything live and does not query the history."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        for n in range(50):
            await neighbours.chat(f"line {n}")
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 5 + 50 + 2
    assert lines[-1] == f"{TASK_SOURCE}#4"
    assert following.is_complete
    assert not [requested for requested in neighbours.requested if isinstance(requested, ListEvents) and requested.task]


@pytest.mark.parametrize("lost", ["submitted", "requested", "assigned", "started", "running"])
async def test_lost_beginning_is_filled_in(client: Herd, neighbours: Neighbours, lost: str) -> None:
    """Whichever of the first events the live subscription loses, it is shown in its place."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin(**{lost: True})
        await neighbours.chat("hello")
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 8
    assert following.is_complete


async def test_lost_events_are_shown_in_their_place(client: Herd, neighbours: Neighbours) -> None:
    """Of the agent's events every third is lost; all are shown, in order and once."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        for n in range(60):
            await neighbours.chat(f"line {n}", received=n % 3 != 1)
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert lines.count(f"sandbox/{SANDBOX}#30") == 1
    assert len(lines) == 5 + 60 + 2
    assert following.is_complete


@pytest.mark.parametrize(("agent", "task"), [(False, True), (True, False), (False, False)])
async def test_lost_end_is_found(client: Herd, neighbours: Neighbours, agent: bool, task: bool) -> None:
    """A lost end of the agent or of the task is found without another event."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        await neighbours.complete(agent_received=agent, task_received=task)
        lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 7
    assert lines[-1] == f"{TASK_SOURCE}#4"
    assert following.is_complete


async def test_late_event_is_requested_again(client: Herd, neighbours: Neighbours) -> None:
    """A gap is requested again, as the history may store an event after its reply."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        late = await neighbours.chat("late", received=False, stored=False)
        await neighbours.complete()
        shown = asyncio.ensure_future(received(following))
        await until(lambda: any(getattr(requested, "after_sequence", None) == 1 for requested in neighbours.requested))
        neighbours.stored.append(late)
        lines = await shown
    assert in_order(lines)
    assert len(lines) == 8


async def test_ended_task_is_shown_from_the_history(client: Herd, neighbours: Neighbours) -> None:
    """Following an ended task shows all of its events in order, and ends."""
    await neighbours.begin()
    for n in range(1200):
        neighbours.stored.append(
            neighbours.envelope(f"/sandherd/sandbox/{SANDBOX}", n + 2, neighbours.stored[3].data, SANDBOX)
        )
    neighbours._numbers[f"sandbox/{SANDBOX}"] = 1201
    await neighbours.complete()
    following = client.follow(task=TASK, limits=QUICK)
    lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 5 + 1200 + 2
    assert following.is_complete


async def test_following_continues_after_a_reconnect(client: Herd, neighbours: Neighbours) -> None:
    """Events that are published during a disconnection are shown afterwards, in order and once."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        shown = asyncio.ensure_future(received(following))
        await neighbours.begin()
        for n in range(6):
            before = client.connection.bus.reconnects
            await neighbours.chat(f"before {n}")
            await client.connection.bus.client.force_reconnect()
            await neighbours.chat(f"during {n}", received=n % 2 == 0)
            await until(lambda before=before: client.connection.bus.reconnects > before)  # type: ignore[misc]  # mypy infers no default of a lambda
        await neighbours.complete()
        lines = await shown
    assert in_order(lines)
    assert len(lines) == 5 + 12 + 2
    assert following.is_complete


@pytest.mark.own_broker
async def test_following_survives_the_broker(client: Herd, neighbours: Neighbours, herd: Broker) -> None:
    """A follower misses nothing when the broker is killed and restarted."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        shown = asyncio.ensure_future(received(following))
        await neighbours.begin()
        await neighbours.chat("before")
        await herd.kill()
        await neighbours.chat("during", received=False)
        await herd.restart()
        buses = [client.connection.bus, *neighbours.buses.values()]
        await until(lambda: all(bus.connected for bus in buses))
        await neighbours.chat("after")
        await neighbours.complete()
        lines = await shown
    assert in_order(lines)
    assert len(lines) == 10
    assert following.is_complete


async def test_following_without_the_history_shows_live_events(client: Herd, neighbours: Neighbours) -> None:
    """With Postgres down, live events are shown to the end, and missing ones are named."""
    neighbours.history_up = False
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin(lambda: joined(following))
        await neighbours.chat("heard")
        await neighbours.chat("lost", received=False)
        await neighbours.chat("heard again")
        await neighbours.complete()
        lines = await received(following)
    assert lines[-1] == f"{TASK_SOURCE}#4"
    assert f"sandbox/{SANDBOX}#4" in lines
    assert following.missing == [MissingRange(f"/sandherd/sandbox/{SANDBOX}", 3, 3)]


async def test_late_follower_without_the_history_names_the_gap(client: Herd, neighbours: Neighbours) -> None:
    """With event-ingest down, live events are shown and the beginning is named as missing."""
    await neighbours.begin()
    await neighbours.silence(ListEvents)
    async with client.follow(task=TASK, limits=QUICK) as following:
        shown = asyncio.ensure_future(received(following))
        await joined(following)
        await neighbours.chat("heard")
        await neighbours.complete()
        lines = await shown
    assert lines[-1] == f"{TASK_SOURCE}#4"
    assert f"sandbox/{SANDBOX}#2" in lines
    assert MissingRange(f"/sandherd/sandbox/{SANDBOX}", 1, 1) in following.missing


async def test_lost_end_without_the_history_is_read_from_live_state(client: Herd, neighbours: Neighbours) -> None:
    """Without the history and the last event, a follower ends by the live state and names the gap."""
    neighbours.history_up = False
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin(lambda: joined(following))
        await neighbours.complete(task_received=False)
        lines = await received(following)
    assert in_order(lines)
    assert following.missing == [MissingRange(f"/sandherd/{TASK_SOURCE}", 4, None)]


async def test_sandbox_is_followed_to_its_last_event(client: Herd, neighbours: Neighbours) -> None:
    """Following ends with the worker's last event, even if that was lost live."""
    async with client.follow(sandbox=SANDBOX, limits=QUICK) as following:
        await neighbours.begin()
        await neighbours.complete()
        await neighbours.go(shutdown_received=False)
        lines = await received(following)
    assert in_order(lines)
    assert f"sandbox/{SANDBOX}#3" in lines
    assert lines[-1] == f"spawner/{SANDBOX}#2"
    assert not [line for line in lines if line.startswith("spawner/task")]


async def test_refused_duplicate_does_not_end_the_following(client: Herd, neighbours: Neighbours) -> None:
    """A second task with the same name that is refused does not end the following of the first."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        await neighbours.publish_event(f"spawner/{TASK}/1", TaskRejected(reason="no such runtime"))
        await neighbours.chat("still here")
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert lines[-1] == f"{TASK_SOURCE}#4"
    assert f"spawner/{TASK}/1#1" in lines


@pytest.mark.parametrize("is_received", [True, False])
async def test_own_refusal_ends_the_following_of_a_used_name(
    client: Herd, neighbours: Neighbours, is_received: bool
) -> None:
    """A submission with a used name gets the reason for its refusal, and not the other task's end."""
    await neighbours.begin()
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await client.submit("something else", ["true"], task=TASK)
        command = await neighbours.take(Principal.SPAWNER)
        await neighbours.chat("of the other one")
        rejected = TaskRejected(reason="there is another task", field="task")
        await neighbours.publish_event(f"spawner/{TASK}/{command.id.hex}", rejected, received=is_received)
        events = [event async for event in following]
    assert events[-1].type == "task.rejected"
    assert events[-1].data == rejected


async def test_wait_for_a_refused_task_raises(client: Herd, neighbours: Neighbours) -> None:
    """The error has the reason and the remedy, rather than stating an unknown task."""
    await neighbours.publish_event(
        f"spawner/{TASK}/1", TaskRejected(reason="there is no runtime 'x' here", field="spec.runtime")
    )
    with pytest.raises(HerdError, match="was rejected: there is no runtime 'x' here") as raised:
        await client.wait(TASK)
    assert "--runtime" in raised.value.line


async def test_reused_name_is_followed_to_its_latest_end(client: Herd, neighbours: Neighbours) -> None:
    """A name that was used before is followed to the end of the current task."""
    await neighbours.begin()
    await neighbours.complete()
    for data in (TaskSubmitted(task="again", harness="command", runtime="process"), TaskCancelled()):
        await neighbours.publish_event(f"spawner/{TASK}/1", data)
    lines = await received(client.follow(task=TASK, limits=QUICK))
    assert in_order(lines)
    assert lines[-1] == f"spawner/{TASK}/1#2"


@pytest.mark.parametrize("is_received", [True, False])
async def test_task_is_followed_over_its_attempts(client: Herd, neighbours: Neighbours, is_received: bool) -> None:
    """A failed attempt does not end the following: the next sandbox is followed, up to the last end."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        failed = AgentFailed(error="boom", error_type="exit_status", exit_code=1)
        await neighbours.publish_event(f"sandbox/{SANDBOX}", failed)
        scheduled = TaskRetryScheduled(not_before=NOW, error="boom", error_type="exit_status", sandbox=SANDBOX)
        await neighbours.publish_event(TASK_SOURCE, scheduled, received=is_received)
        await neighbours.attempt("sbx-two", received=is_received)
        lines = await received(following)
    assert in_order(lines)
    assert following.sandboxes == {SANDBOX, "sbx-two"}
    assert {"sandbox/sbx-two#1", "sandbox/sbx-two#2"} <= set(lines)
    assert lines[-1] == f"{TASK_SOURCE}#7"
    assert following.is_complete


async def test_revoked_end_is_shown_in_its_place(client: Herd, neighbours: Neighbours) -> None:
    """A task that a user retries is followed to its last end, with its first end in its place."""
    await neighbours.begin()
    await neighbours.complete()
    await neighbours.publish_event(
        TASK_SOURCE, TaskRetryScheduled(not_before=NOW, error="asked for", requested_by="somebody")
    )
    await neighbours.attempt("sbx-two")
    lines = await received(client.follow(task=TASK, limits=QUICK))
    assert in_order(lines)
    assert lines.index(f"{TASK_SOURCE}#4") < lines.index(f"{TASK_SOURCE}#5") < lines.index("sandbox/sbx-two#1")
    assert lines[-1] == f"{TASK_SOURCE}#8"


@pytest.mark.parametrize("is_received", [True, False])
async def test_refused_sandbox_ends_its_following(
    client: Herd, neighbours: Neighbours, monkeypatch: pytest.MonkeyPatch, is_received: bool
) -> None:
    """The request for an impossible sandbox raises the reason with the remedy, live or not."""
    monkeypatch.setattr("sandherd.client.events.follower.FollowLimits", lambda: QUICK)
    creating = asyncio.ensure_future(client.create(sandbox="sbx-new"))
    command = await neighbours.take(Principal.SPAWNER)
    refused = SandboxRefused(command=command.type, reason="8 of 8 sandboxes live", field="sandbox")
    await neighbours.publish_event(f"spawner/sbx-new/{command.id.hex}", refused, received=is_received)
    with pytest.raises(HerdError, match="create sbx-new was refused: 8 of 8 sandboxes live"):
        await creating


async def test_refusal_of_another_command_does_not_end_the_following(client: Herd, neighbours: Neighbours) -> None:
    """The refusal of another client's command for this sandbox is shown as an event."""
    async with client.follow(sandbox=SANDBOX, limits=QUICK) as following:
        await neighbours.begin()
        refused = SandboxRefused(command="spawner.create_sandbox", reason="there is one", field="sandbox")
        await neighbours.publish_event(f"spawner/{SANDBOX}/1", refused)
        await neighbours.complete()
        await neighbours.go()
        lines = await received(following)
    assert f"spawner/{SANDBOX}/1#1" in lines
    assert lines[-1] == f"spawner/{SANDBOX}#2"


async def test_unknown_task_is_an_error(client: Herd, neighbours: Neighbours) -> None:
    """An unknown task raises an error with a remedy, instead of being waited for."""
    with pytest.raises(HerdError) as raised:
        await received(client.follow(task="task-unknown", limits=QUICK))
    assert "sandherd tasks list" in raised.value.line


async def test_submitted_task_not_yet_known_is_waited_for(client: Herd, neighbours: Neighbours) -> None:
    """A task that the spawner has not recorded yet is no error."""
    shown = asyncio.ensure_future(received(client.follow(task=TASK, limits=replace(QUICK, beginning=20))))
    await until(lambda: any(isinstance(requested, ListPastTasks) for requested in neighbours.requested))
    await neighbours.begin()
    await neighbours.complete()
    assert in_order(await shown)


async def test_unavailable_services_are_an_error(client: Herd, neighbours: Neighbours) -> None:
    """With spawner and history down, following an unknown name raises an error that names the service."""
    await neighbours.silence(ListLiveTasks)
    neighbours.history_up = False
    with pytest.raises(ServiceUnavailableError, match="spawner"):
        await received(client.follow(task=TASK, limits=QUICK))


async def test_event_on_a_foreign_subject_is_not_shown(client: Herd, neighbours: Neighbours) -> None:
    """An event that a worker publishes with another's source is ignored."""
    async with client.follow(task=TASK, fresh=True, limits=QUICK) as following:
        await neighbours.begin()
        forged = neighbours.envelope(f"/sandherd/{TASK_SOURCE}", 4, neighbours.stored[3].data, SANDBOX)
        await neighbours.publish(Principal.WORKER, forged)
        await neighbours.complete()
        lines = await received(following)
    assert in_order(lines)
    assert len(lines) == 7


async def test_wait_returns_the_ended_task(client: Herd, neighbours: Neighbours) -> None:
    """`wait` returns the last state of the task when it has ended."""
    await neighbours.begin()
    waiting = asyncio.ensure_future(client.wait(TASK))
    await until(lambda: any(isinstance(requested, ListLiveTasks) for requested in neighbours.requested))
    await neighbours.complete()
    assert (await waiting).state is TaskState.COMPLETED


async def joined(following: EventFollower) -> None:
    """Wait until a follower has subscribed to the sandbox, which happens long before a real one publishes."""
    await until(lambda: f"sandherd.v1.event.default.{SANDBOX}.>" in following._feed._subscriptions)
    await following._link.bus.flush()  # type: ignore[attr-defined]  # of its connection


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; the test's own time limit ends it."""
    while not condition():  # any condition, also of another connection
        await asyncio.sleep(0.01)
