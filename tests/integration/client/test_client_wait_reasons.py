"""Every command that shows a task without progress states the reason."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandherd.cli.render import timed_display
from sandherd.client import Context, Herd, HerdError
from sandherd.client.events.time_order import TimeOrder
from sandherd.contracts.errors import Code
from sandherd.contracts.events.sandbox import SandboxRequested, SandboxSpawned
from sandherd.contracts.events.task import TaskAssigned, TaskCancelled, TaskSubmitted
from sandherd.contracts.requests import (
    ApprovalList,
    ApprovalView,
    LimitView,
    ListApprovals,
    ListLiveSandboxes,
    ListLiveTasks,
    ListPastSandboxes,
    ListPastTasks,
    ListProjects,
    ListSchedules,
    ListSecrets,
    ListSubscriptions,
    ProjectList,
    ProjectView,
    SandboxList,
    SandboxView,
    ScheduleList,
    SecretList,
    SubscriptionList,
    TaskList,
    TaskView,
)
from sandherd.contracts.states import ApprovalState, SandboxState, TaskState
from sandherd.contracts.subjects import Principal
from sandherd.stack import StackStatus
from sandherd.stack.broker import Broker
from sandherd.stack.home import StackPhase
from tests.patience import PATIENCE

TASK, SANDBOX = "task-one", "sbx-one"
SPAWNER, INGEST = Principal.SPAWNER, Principal.EVENT_INGEST
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Neighbours = Any
Sandherd = Callable[..., Any]


class Notices:
    """The lines of `run` on standard error while it waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str] = asyncio.Queue()

    def add(self, line: str) -> None:
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return await self._lines.get()


@pytest.fixture
async def notices(monkeypatch: pytest.MonkeyPatch) -> Notices:
    found = Notices()
    monkeypatch.setattr("sandherd.cli.wait_notices.print_error", found.add)
    monkeypatch.setattr("sandherd.cli.wait_notices.QUIET_SECONDS", 0.05)
    return found


@pytest.fixture
def operator(herd: Broker) -> list[str]:
    return ["--credentials", str(herd.credentials(Principal.OPERATOR))]


def a_task(state: TaskState, **more: Any) -> TaskView:
    return TaskView(project="default", task=TASK, state=state, submitted_at=NOON, text="do it", **more)


def a_sandbox(state: SandboxState, **more: Any) -> SandboxView:
    return SandboxView(
        project="default", sandbox=SANDBOX, state=state, task=TASK, runtime="process", requested_at=NOON, **more
    )


def an_approval() -> ApprovalView:
    return ApprovalView(
        project="default",
        sandbox=SANDBOX,
        approval_id="apr-1",
        state=ApprovalState.PENDING,
        tool="Bash",
        requested_at=NOON,
    )


async def begun(neighbours: Neighbours, sandherd: Sandherd) -> "asyncio.Future[Any]":
    """A `run` whose command was received; its task is the neighbours'."""
    running: asyncio.Future[Any] = asyncio.ensure_future(sandherd("run", "compute it", "--", "true"))
    neighbours.task = (await neighbours.take(SPAWNER)).subject
    return running


async def finish(neighbours: Neighbours, running: "asyncio.Future[Any]") -> None:
    await neighbours.begin()
    await neighbours.complete()
    assert (await running)[0] == 0


async def test_run_states_what_a_pending_task_waits_for(
    neighbours: Neighbours, sandherd: Sandherd, notices: Notices
) -> None:
    """The reason, such as a full herd, is printed once, and again when it changes."""
    running = await begun(neighbours, sandherd)
    assert "has not handled its submission" in await notices.next()
    for reason in ("1 of 1 sandboxes live; 2 tasks are before it", "1 of 1 sandboxes live; it is next"):
        neighbours.tasks[neighbours.task] = a_task(TaskState.PENDING, waits_for=reason).model_copy(
            update={"task": neighbours.task}
        )
        assert await notices.next() == f"{neighbours.task} waits: {reason}"
    await finish(neighbours, running)


async def test_run_states_that_the_spawner_does_not_respond(
    neighbours: Neighbours, sandherd: Sandherd, notices: Notices
) -> None:
    """The output also states that the task is stored."""
    await neighbours.silence(ListLiveTasks)
    running = await begun(neighbours, sandherd)
    notice = await notices.next()
    assert "spawner is unavailable; the task is stored" in notice
    assert "sandherd status" in notice
    await neighbours.answer_all()
    await finish(neighbours, running)


@pytest.mark.parametrize(
    ("state", "notice"),
    [
        (SandboxState.SPAWNING, f"{SANDBOX} is starting"),
        (SandboxState.PAUSED, f"sandherd sandboxes resume {SANDBOX}"),
        (SandboxState.RUNNING, f"approval of Bash: `sandherd approvals grant {SANDBOX} apr-1`"),
    ],
)
async def test_run_states_what_its_sandbox_waits_for(
    neighbours: Neighbours, sandherd: Sandherd, notices: Notices, state: SandboxState, notice: str
) -> None:
    """`run` states that the sandbox starts, is paused, or waits for a user, with the command that continues."""
    await neighbours.answer(INGEST, ListApprovals, lambda _: ApprovalList(approvals=[an_approval()]))
    running = await begun(neighbours, sandherd)
    neighbours.sandboxes[SANDBOX] = a_sandbox(state)
    neighbours.tasks[neighbours.task] = a_task(TaskState.RUNNING, sandbox=SANDBOX)
    await neighbours.answer(
        SPAWNER, ListLiveTasks, lambda _: TaskList(tasks=[a_task(TaskState.RUNNING, sandbox=SANDBOX)])
    )
    while notice not in await notices.next():
        pass
    await neighbours.answer_all()
    await finish(neighbours, running)


async def test_task_that_waits_for_a_user_is_shown_as_such(
    neighbours: Neighbours, sandherd: Sandherd, client: Herd
) -> None:
    """The list, the single view and JSON show that it waits; without the history it is running."""
    await neighbours.answer(INGEST, ListApprovals, lambda _: ApprovalList(approvals=[an_approval()] * 2))
    neighbours.tasks = {
        TASK: a_task(TaskState.RUNNING, sandbox=SANDBOX),
        "task-two": a_task(TaskState.RUNNING, sandbox="sbx-two").model_copy(update={"task": "task-two"}),
    }
    waits = "approval apr-1 of Bash, and 1 more"
    assert {view.task: view.waits_for for view in (await client.tasks()).items} == {TASK: waits, "task-two": None}
    assert waits in (await sandherd("tasks", "list"))[1]
    assert waits in (await sandherd("tasks", "get", TASK))[1]
    await neighbours.silence(ListApprovals)
    assert (await client.task(TASK)).waits_for is None


async def test_status_counts_pending_approvals(
    neighbours: Neighbours, sandherd: Sandherd, operator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All projects count; without the history there is no such line."""

    async def found(home: Path) -> StackStatus:
        return StackStatus(home=home, phase=StackPhase.READY)

    monkeypatch.setattr("sandherd.stack.status", found)
    await neighbours.answer(INGEST, ListApprovals, lambda _: ApprovalList(approvals=[an_approval()] * 2))
    status, out, _ = await sandherd(*operator, "status")
    assert (status, "an answer to 2 approvals" in out) == (0, True)
    assert json.loads((await sandherd(*operator, "status", "-o", "json"))[1])["pending_approvals"] == 2
    await neighbours.silence(ListApprovals)
    assert "approvals" not in (await sandherd(*operator, "status"))[1]


async def test_live_output_is_sorted_by_time(
    neighbours: Neighbours, sandherd: Sandherd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of several sources are shown in order of their times, though they arrive in another order."""
    # It takes any time: on a busy machine more than the default delay may pass between two messages.
    monkeypatch.setattr(timed_display, "TimeOrder", partial(TimeOrder, PATIENCE, limit=PATIENCE))
    running = await begun(neighbours, sandherd)

    async def publish_event(source: str, number: int, data: Any, entity: str, milliseconds: int) -> None:
        event = neighbours.envelope(f"/sandherd/{source}", number, data, entity)
        event = event.model_copy(update={"time": NOON + timedelta(milliseconds=milliseconds)})
        neighbours.stored.append(event)
        await neighbours.publish(SPAWNER, event)

    task = neighbours.task
    submitted = TaskSubmitted(task="do it", harness="command", runtime="process")
    await publish_event(neighbours.task_source, 1, submitted, task, 0)
    await publish_event(f"spawner/{SANDBOX}", 1, SandboxRequested(runtime="process"), SANDBOX, 120)
    await publish_event(f"spawner/{SANDBOX}", 2, SandboxSpawned(runtime="process"), SANDBOX, 222)
    await publish_event(neighbours.task_source, 2, TaskAssigned(sandbox=SANDBOX), task, 116)
    neighbours.tasks[task] = a_task(TaskState.CANCELLED).model_copy(update={"task": task})
    await publish_event(neighbours.task_source, 3, TaskCancelled(), task, 300)
    status, out, _ = await running
    shown = [line.split()[1] for line in out.splitlines()[1:]]
    assert status == 1
    assert shown == ["task.submitted", "task.assigned", "sandbox.requested", "sandbox.spawned", "task.cancelled"]


async def test_sandbox_view_equals_that_of_the_history(
    neighbours: Neighbours, sandherd: Sandherd, client: Herd
) -> None:
    """`sandboxes get` has the same number of events as `sandboxes list --past`, and the live state."""
    neighbours.sandboxes[SANDBOX] = a_sandbox(SandboxState.RUNNING)
    past = a_sandbox(SandboxState.SPAWNING, events=50, last_event_at=NOON, last_heartbeat_at=NOON)
    await neighbours.answer(INGEST, ListPastSandboxes, lambda _: SandboxList(sandboxes=[past]))
    found = json.loads((await sandherd("sandboxes", "get", SANDBOX, "-o", "json"))[1])
    assert (found["state"], found["events"]) == ("running", 50)
    [live] = json.loads((await sandherd("sandboxes", "list", "-o", "json"))[1])["sandboxes"]
    assert live == found
    [listed] = json.loads((await sandherd("sandboxes", "list", "--past", "-o", "json"))[1])["sandboxes"]
    assert {name: found[name] for name in ("events", "last_event_at", "last_heartbeat_at")} == {
        name: listed[name] for name in ("events", "last_event_at", "last_heartbeat_at")
    }
    await neighbours.silence(ListPastSandboxes)
    assert (await client.sandbox(SANDBOX)).state is SandboxState.RUNNING
    assert [view.state for view in (await client.sandboxes()).items] == [SandboxState.RUNNING]


@pytest.mark.parametrize("kind", ["tasks", "sandboxes"])
async def test_truncated_list_states_it(neighbours: Neighbours, sandherd: Sandherd, kind: str) -> None:
    """A note on standard error says how to see the rest; a complete list has none. A document has a field."""
    tasks, sandboxes = [a_task(TaskState.RUNNING)], [a_sandbox(SandboxState.RUNNING)]
    for cursor in ("c-17", None):
        await neighbours.answer(SPAWNER, ListLiveTasks, lambda _, at=cursor: TaskList(tasks=tasks, next_cursor=at))
        await neighbours.answer(
            SPAWNER, ListLiveSandboxes, lambda _, at=cursor: SandboxList(sandboxes=sandboxes, next_cursor=at)
        )
        status, _, err = await sandherd(kind, "list", "-n", "1")
        assert status == 0
        assert err == (
            f"sandherd: there are more {kind}: continue with --cursor c-17, or set a higher --limit\n" * bool(cursor)
        )
        _, out, lines_err = await sandherd(kind, "list", "-n", "1", "-o", "jsonl")
        assert (out.count("\n"), lines_err) == (1, err)
        _, out, document_err = await sandherd(kind, "list", "-n", "1", "-o", "json")
        assert (json.loads(out)["next_cursor"], document_err) == (cursor, "")


async def test_commands_about_ended_objects_are_conflicts(
    neighbours: Neighbours, sandherd: Sandherd, client: Herd
) -> None:
    """Cancel, terminate and retry in a final state have status 1, and the error `conflict` for programs."""
    neighbours.tasks[TASK] = a_task(TaskState.COMPLETED)
    neighbours.sandboxes[SANDBOX] = a_sandbox(SandboxState.TERMINATED)
    await neighbours.answer(SPAWNER, ListLiveTasks, lambda _: TaskList(tasks=[a_task(TaskState.COMPLETED)]))
    for words in (["tasks", "cancel", TASK], ["sandboxes", "terminate", SANDBOX]):
        status, out, err = await sandherd(*words)
        assert (status, out, err.count("\n")) == (1, "", 1)
        assert f"{words[-1]} is " in err
        assert f"see `sandherd {words[0]} get {words[-1]}`" in err
    for attempt in (client.cancel(TASK), client.terminate(SANDBOX)):
        with pytest.raises(HerdError) as caught:
            await attempt
        assert caught.value.problem.code is Code.CONFLICT


async def test_retry_of_a_running_task_is_a_conflict(neighbours: Neighbours, client: Herd) -> None:
    """A retry of a running task is a conflict, too."""
    neighbours.tasks[TASK] = a_task(TaskState.RUNNING)
    with pytest.raises(HerdError) as caught:
        await client.retry(TASK)
    assert caught.value.problem.code is Code.CONFLICT


async def test_unknown_task_can_be_cancelled(neighbours: Neighbours, client: Herd) -> None:
    """The cancellation is accepted, as the submission may be unread: both commands are handled in order."""
    await client.cancel("task-new")
    assert (await neighbours.take(SPAWNER)).subject == "task-new"


async def nothing_known(neighbours: Neighbours) -> None:
    """Take the place of services of a herd in which no project has anything."""
    await neighbours.answer(SPAWNER, ListSecrets, lambda _: SecretList(secrets=[]))
    limit = LimitView(maximum=8, source="max_sandboxes")
    unknown = ProjectView(project="typo", tasks=limit, sandboxes=limit)
    await neighbours.answer(SPAWNER, ListProjects, lambda _: ProjectList(projects=[unknown]))
    await neighbours.answer(SPAWNER, ListSchedules, lambda _: ScheduleList(schedules=[]))
    await neighbours.answer(INGEST, ListSubscriptions, lambda _: SubscriptionList(subscriptions=[], most=10))


async def test_unknown_project_is_an_error_unless_created(
    neighbours: Neighbours, sandherd: Sandherd, operator: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped `--project` is an error, both for lists and for `run`; `--create` permits a new project."""
    # A service without a reply in time may know the project: on a busy machine each replies, but later.
    monkeypatch.setattr("sandherd.client.projects.CHECK_SECONDS", float(PATIENCE))
    await nothing_known(neighbours)
    for words in (["tasks", "list"], ["run", "x", "--no-follow"], ["sandboxes", "create", "--no-wait"]):
        more = ["--", "true"] if words[0] == "run" else []
        status, out, err = await sandherd(*operator, *words, "--project", "typo", *more)
        assert (status, out) == (1, "")
        assert "there is no project typo" in err
        assert "--create" in err
    status, _, err = await sandherd(*operator, "run", "x", "--no-follow", "--project", "typo", "--create", "--", "true")
    assert (status, err) == (0, "")
    assert (await neighbours.take(SPAWNER)).project == "typo"


async def test_project_is_known_by_its_objects(
    neighbours: Neighbours, sandherd: Sandherd, operator: list[str], context: Context
) -> None:
    """A task, an event or a record makes a project known; the default and a credential's own are always known.

    Without a reply of the services any project counts as known.
    """
    await nothing_known(neighbours)
    own = ["--project", "default"]
    assert (await sandherd("tasks", "list", *own))[0] == (await sandherd(*operator, "tasks", "list", *own))[0] == 0
    limit = LimitView(maximum=8, source="max_sandboxes")
    known = ProjectView(project="typo", tasks=limit, sandboxes=limit, created_at=datetime.now(UTC))
    await neighbours.answer(SPAWNER, ListProjects, lambda _: ProjectList(projects=[known]))
    assert (await sandherd(*operator, "tasks", "list", "--project", "typo"))[0] == 0
    await nothing_known(neighbours)
    await neighbours.publish_event(f"spawner/{SANDBOX}", SandboxRequested(runtime="process"))
    assert (await sandherd(*operator, "tasks", "list", "--project", "typo"))[0] == 0
    neighbours.stored.clear()
    assert (await sandherd(*operator, "tasks", "list", "--project", "typo"))[0] == 1
    await neighbours.silence(ListPastTasks)
    assert (await sandherd(*operator, "tasks", "list", "--project", "typo"))[0] == 0
    await neighbours.answer(INGEST, ListPastTasks, lambda _: TaskList(tasks=[a_task(TaskState.COMPLETED)]))
    assert (await sandherd(*operator, "sandboxes", "list", "--project", "other"))[0] == 0
