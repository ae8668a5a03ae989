"""Attempts, and sandboxes without a task, in the history."""

from datetime import timedelta
from functools import partial
from typing import Any

from event_ingest.queries.events import list_events
from event_ingest.queries.tasks_and_sandboxes import list_sandboxes, list_tasks
from event_ingest.queries.trajectory import read_trajectory
from sandherd.contracts.requests import GetAudit, GetTrajectory, ListEvents, ListPastSandboxes, ListPastTasks
from tests.encoded_answers import read_answer


async def requested(history: Any, answer: Any, question: Any) -> Any:
    async with history.database.reading() as connection:
        return read_answer(await answer(connection, question, "default", 1_000_000))


def _tried_again(script: Any) -> list[Any]:
    """The events of a task whose first attempt was lost, up to its retry."""
    task = partial(script.spawner, entity="task-1", taskid="task-1")
    own = partial(script.spawner, entity="sbx-1", taskid="task-1", sandboxid="sbx-1", runtime="process")
    return [
        task(
            "task.submitted",
            task="t",
            harness="command",
            runtime="process",
            priority="high",
            depends_on=["task-0"],
            deadline=script.clock,
            max_attempts=3,
            profile="python",
        ),
        own("sandbox.requested"),
        task("task.assigned", sandbox="sbx-1"),
        task("task.running", sandbox="sbx-1"),
        own("sandbox.failed", error="gone", error_type="sandbox_lost"),
        task("task.retry_scheduled", sandbox="sbx-1", not_before=script.clock, error="gone", error_type="sandbox_lost"),
    ]


async def test_retried_task_is_shown_as_its_last_attempt(history: Any, script: Any) -> None:
    """Between two attempts a task is pending, with time and reason; then it has only the data of the new attempt."""
    submitted = script.clock
    await history.deliver(_tried_again(script))
    [waiting] = (await requested(history, list_tasks, ListPastTasks())).tasks
    assert (waiting.state, waiting.attempt, waiting.error_type) == ("pending", 2, "sandbox_lost")
    assert (waiting.sandbox, waiting.started_at, waiting.ended_at) == (None, None, None)
    assert waiting.not_before is not None
    assert (waiting.priority, waiting.depends_on, waiting.max_attempts) == ("high", ["task-0"], 3)
    assert (waiting.profile, waiting.deadline) == ("python", submitted)
    task = partial(script.spawner, entity="task-1", taskid="task-1", attempt=2, sandbox="sbx-2")
    await history.deliver([task("task.assigned")])
    [assigned] = (await requested(history, list_tasks, ListPastTasks())).tasks
    assert (assigned.state, assigned.sandbox, assigned.started_at) == ("assigned", "sbx-2", None)
    assert (assigned.error, assigned.error_type, assigned.not_before) == (None, None, None)
    timed_out = {"limit_seconds": 1.0, "whole_task": True}
    late = [
        task("task.running"),
        script.spawner("task.timed_out", "task-1", taskid="task-1", attempt=2, **timed_out),
        task("task.failed", error="too long", error_type="task_timed_out"),
    ]
    await history.deliver(late)
    [ended] = (await requested(history, list_tasks, ListPastTasks())).tasks
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 2, "task_timed_out")
    assert ended.started_at is not None
    events = (await requested(history, list_events, ListEvents(task="task-1", types=["sandbox.*"]))).events
    assert [event.envelope["subject"] for event in events] == ["sbx-1", "sbx-1"]


async def test_sandbox_without_a_task_is_shown_and_paged(history: Any, script: Any) -> None:
    """Requests and commands of a sandbox without a task are shown; a refused command does not change its state."""
    own = partial(script.spawner, entity="sbx-1", sandboxid="sbx-1", runtime="process")
    ends = script.clock + timedelta(hours=2)
    await history.deliver([own("sandbox.requested", expires_at=script.clock, profile="python"), own("sandbox.spawned")])
    done = [
        script.agent("agent.exec_started", "sbx-1", exec_id="exc-1", command=["ls"], cwd="."),
        script.agent("agent.exec_completed", "sbx-1", exec_id="exc-1", state="exited", exit_code=0),
        script.agent("agent.file_uploaded", "sbx-1", path="a", size=1, sha256="0" * 64),
        script.agent("agent.file_downloaded", "sbx-1", path="a", size=1, sha256="0" * 64),
    ]
    refused = script.emit(
        "sandbox.refused",
        "sbx-1",
        "/sandherd/spawner/sbx-1/1",
        command="spawner.pause_sandbox",
        reason="it can't be frozen",
    )
    await history.deliver([own("sandbox.running"), *done, own("sandbox.extended", expires_at=ends), refused])
    [box] = (await requested(history, list_sandboxes, ListPastSandboxes())).sandboxes
    assert (box.state, box.task, box.expires_at, box.profile) == ("running", None, ends, "python")
    assert (box.warm, box.reason) == (False, None)
    story = await requested(history, read_trajectory, GetTrajectory(sandbox="sbx-1"))
    assert [event.envelope["type"] for event in story.events][3:-2] == [event.type for event in done]
    assert story.events[3].envelope["data"]["command"] == ["ls"]


async def test_audit_of_a_sandbox_without_a_task_covers_it_alone(running: Any, script: Any) -> None:
    """A sandbox that ended without an agent lacks nothing; sources that also publish about others are not included."""
    own = partial(script.spawner, entity="sbx-1", sandboxid="sbx-1", runtime="process")
    found = {"rule": "dead", "age_seconds": 1.0, "limit_seconds": 1.0}
    events = [
        own("sandbox.requested"),
        own("sandbox.running"),
        script.agent("agent.started", "sbx-1", timestamp=script.clock, sdk="none", task="", task_description_length=0),
        *(script.emit("monitor.dead_found", name, "/sandherd/monitor/1", **found) for name in ("sbx-1", "sbx-2")),
        script.agent("agent.shutdown", "sbx-1", reason="terminated", timestamp=script.clock),
        own("sandbox.refused", command="spawner.pause_sandbox", reason="it can't be frozen"),
        script.emit("sandbox.refused", "sbx-1", f"/sandherd/spawner/sbx-1/{'c' * 32}", command="x", reason="no"),
    ]
    await running.emit(events)
    await running.stored(len(events))
    audit = await running.ask(GetAudit(sandbox="sbx-1"))
    assert (audit.missing, audit.unsaid, audit.conflicts) == (0, 0, 0)
    assert [(source.source, source.closed) for source in audit.sources] == [
        ("/sandherd/sandbox/sbx-1", True),
        ("/sandherd/spawner/sbx-1", False),
        (f"/sandherd/spawner/sbx-1/{'c' * 32}", True),
    ]
    end = [own("sandbox.stopping", reason="terminated"), own("sandbox.terminated", reason="terminated")]
    await running.emit(end)
    await running.stored(len(events) + len(end))
    audit = await running.ask(GetAudit(sandbox="sbx-1"))
    assert (audit.missing, audit.unsaid, [source.closed for source in audit.sources]) == (0, 0, [True] * 3)
